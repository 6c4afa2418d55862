"""`from_ray` makes classes of studydb from classes with the methods of `ray.tune.Trainable`."""

import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

import studydb
from studydb.domain.errors import TrainableError, TrialStopped
from studydb.trainables import call, check_signature, with_parameters
from studydb.trainables.ray_classes import from_ray

ROOT = Path(__file__).parents[2]

RAY = """
class Trainable:
    def __init__(self, config=None, logger_creator=None, storage=None):
        raise AssertionError("Ray's __init__ needs a session of Ray")
    @property
    def iteration(self):
        return self._iteration
    training_iteration = iteration
    def setup(self, config): ...
    def step(self): raise NotImplementedError
    def save_checkpoint(self, checkpoint_dir): raise NotImplementedError
    def load_checkpoint(self, checkpoint): raise NotImplementedError
    def reset_config(self, new_config): return False
    def cleanup(self): ...
"""


CLASS_OF_A_USER = """
from ray.tune.trainable import Trainable
class Decay(Trainable):
    def setup(self, config): self.seen = None
    def step(self): return {"loss": 1.0}
"""

IN_ANOTHER_PROCESS = """
import pickle, sys
import studydb
sys.path.insert(0, sys.argv[2])
cls = pickle.load(open(sys.argv[1], "rb"))
assert cls().iteration == 0 and cls().training_iteration == 0
for name in ("save_checkpoint", "load_checkpoint", "reset_config", "cleanup"):
    assert getattr(cls, name) is getattr(studydb.Trainable, name), name
"""


def test_class_that_is_sent_by_value_keeps_the_members_that_replace_those_of_ray(tmp_path):
    """
    An import of `mine:Decay` gives the user's class, not the class that `from_ray` makes of it.

    Therefore the class that `from_ray` makes is sent by value.
    """
    (tmp_path / "ray" / "tune").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray" / "tune" / "__init__.py").touch()
    (tmp_path / "ray" / "tune" / "trainable.py").write_text(RAY)
    (tmp_path / "mine.py").write_text(CLASS_OF_A_USER)
    save = (
        "import sys, cloudpickle; sys.path.insert(0, sys.argv[2]); import mine, studydb; "
        "cls = studydb.from_ray(mine.Decay); cloudpickle.dump(cls, open(sys.argv[1], 'wb'))"
    )

    for program in (save, IN_ANOTHER_PROCESS):
        command = [sys.executable, "-c", program, str(tmp_path / "pickle"), str(tmp_path)]
        subprocess.run(command, check=True, cwd=ROOT)


@pytest.fixture
def ray_trainable(monkeypatch):
    """A class like `Trainable` of Ray Tune 2.60, with the members that `from_ray` handles."""
    module = types.ModuleType("ray.tune.trainable")
    exec(RAY, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.Trainable


class Trial:
    """A trial without a worker; `report` raises TrialStopped if the metrics have `done=True`."""

    def __init__(self, scratch, checkpoint=None, start_step=0):
        self.scratch, self.checkpoint, self.start_step = scratch, checkpoint, start_step
        self.reports, self.saved = [], []

    def report(self, metrics, checkpoint=None):
        self.reports.append(dict(metrics))
        self.saved.append(checkpoint)
        if metrics.get("done"):
            raise TrialStopped("done")


def written_for(base):
    class Mine(base):
        """Trains three steps."""

        def setup(self, config):
            self.calls, self.x = ["setup"], config["x"]

        def step(self):
            self.x /= 2
            return {"loss": self.x, "seen": self.iteration, "done": self.training_iteration == 2}

        def save_checkpoint(self, checkpoint_dir):
            assert checkpoint_dir
            return {"x": self.x}

        def load_checkpoint(self, checkpoint):
            self.x = checkpoint["x"]

        def reset_config(self, new_config):
            return new_config == self.config

        def cleanup(self):
            ENDED.append(self.config)

    return Mine


ENDED = []


def run(cls, trial, config):
    ENDED.clear()
    with pytest.raises(TrialStopped):
        call(cls, config, trial)


@pytest.mark.parametrize("has_base", [True, False], ids=["ray", "duck"])
def test_class_of_ray_trains_saves_and_ends_as_in_ray(ray_trainable, tmp_path, has_base):
    cls, trial = from_ray(written_for(ray_trainable if has_base else object)), Trial(tmp_path)

    run(cls, trial, {"x": 8.0})

    assert [each["loss"] for each in trial.reports] == [4.0, 2.0, 1.0]
    assert [each["seen"] for each in trial.reports] == [0, 1, 2]
    assert [each["training_iteration"] for each in trial.reports] == [1, 2, 3]
    assert trial.saved == [{"x": 4.0}, {"x": 2.0}, {"x": 1.0}]
    assert ENDED == [{"x": 8.0}]
    assert (cls.__name__, cls.__doc__) == ("Mine", "Trains three steps.")


def test_class_of_ray_goes_on_from_its_checkpoint(ray_trainable, tmp_path):
    saved = SimpleNamespace(data=b"", to_dict=lambda: {"x": 2.0})
    trial = Trial(tmp_path, saved, start_step=2)

    run(from_ray(written_for(ray_trainable)), trial, {"x": 8.0})

    assert [(each["loss"], each["training_iteration"]) for each in trial.reports] == [(1.0, 3)]


def test_methods_that_a_class_only_inherits_from_ray_are_not_called(ray_trainable, tmp_path):
    class Plain(ray_trainable):
        def step(self):
            return {"loss": 1.0, "done": True}

    trial = Trial(tmp_path)
    run(from_ray(Plain), trial, {})

    assert trial.saved == [None]
    assert from_ray(Plain).save_checkpoint is studydb.Trainable.save_checkpoint


def test_reset_config_of_the_users_class_is_kept(ray_trainable):
    cls = from_ray(written_for(ray_trainable))
    one = cls()
    one.config = {"x": 1}

    assert one.reset_config({"x": 1}) is True


def test_steps_that_a_class_counts_by_itself_do_not_change_the_reported_steps(
    ray_trainable, tmp_path
):
    class Counting(ray_trainable):
        def setup(self, config):
            self.training_iteration = config["begin"]

        def step(self):
            self.training_iteration += 1
            return {"loss": 1.0, "done": self.training_iteration == 8}

    trial = Trial(tmp_path)

    run(from_ray(Counting), trial, {"begin": 6})

    assert [each["training_iteration"] for each in trial.reports] == [1, 2]


def test_objects_can_be_bound_to_a_class_of_ray(ray_trainable):
    class Bound(ray_trainable):
        def setup(self, config, data): ...
        def step(self): ...

    assert with_parameters(from_ray(Bound), data=3).values == {"data": 3}
    with pytest.raises(
        TrainableError, match=r"Bound.setup cannot be called with the arguments that it would get"
    ):
        check_signature(from_ray(Bound))


class Old:
    def _setup(self, config): ...
    def _train(self): ...


class WithInit:
    def __init__(self, config=None):  # noqa: ARG002  as in Ray
        self.rate = 0.1

    def step(self): ...


class Inheriting(WithInit): ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (WithInit, "WithInit has the method __init__ of WithInit, .* move it to setup"),
        (Inheriting, "Inheriting has the method __init__ of WithInit"),
        (Old, "Old has no method step"),
        (Old(), "give a class, not an object"),
        (studydb.Trainable, "give it as it is"),
    ],
)
def test_object_or_class_that_from_ray_cannot_run_is_refused(given, words):
    with pytest.raises(TrainableError, match=words):
        from_ray(given)
