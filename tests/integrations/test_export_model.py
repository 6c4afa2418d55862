"""`studydb export-model`: the trainable writes its model from a checkpoint, on demand."""

import pickle
import sys

import pytest

CLASS = """
import json, pathlib, studydb

class Model(studydb.Trainable):
    def setup(self, config):
        self.weight = 0.0

    def step(self):
        self.weight += self.config["x"]
        return {"loss": 1 / (1 + self.iteration), "done": self.iteration == 2}

    def save_checkpoint(self, directory):
        return {"weight": self.weight}

    def load_checkpoint(self, checkpoint):
        self.weight = checkpoint["weight"]

    def export_model(self, directory):
        path = pathlib.Path(directory) / "model.json"
        path.write_text(json.dumps({"weight": self.weight, "iteration": self.iteration}))
"""

FUNCTION = """
import json, pathlib

def train(config, trial):
    for step in (1, 2, 3):
        trial.report({"loss": 1 / step}, checkpoint={"weight": config["x"] * step})

def export(config, checkpoint, directory):
    told = {"weight": checkpoint.to_dict()["weight"], "iteration": checkpoint.step}
    (pathlib.Path(directory) / "model.json").write_text(json.dumps(told))

train.export_model = export
"""

SOURCES = {"exported:Model": CLASS, "exported:train": FUNCTION}


@pytest.fixture
def create(here, sqlite_url, monkeypatch, create_study, capsys):
    """Write a module, create a study of its trainable, and run the study's trial."""
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_url)
    monkeypatch.setattr(sys, "argv", sys.argv)

    def create(trainable, source, **options):
        sys.modules.pop("exported", None)
        (here / "exported.py").write_text(source)
        study = create_study(
            "made",
            trainable,
            space={"x": 0.5},
            num_trials=1,
            workdir=here,
            storage=sqlite_url,
            keep="last=9",
            **options,
        )
        study.run()
        capsys.readouterr()
        return study

    yield create
    sys.modules.pop("exported", None)


@pytest.mark.slow
@pytest.mark.row("B13")
@pytest.mark.parametrize("trainable", SOURCES)
def test_trainable_writes_its_model_from_a_checkpoint(bare_console, here, create, trainable):
    create(trainable, SOURCES[trainable])

    ran = bare_console("export-model", "made", "0", "out/model")
    bare_console("export-model", "made", "0", "first", "--step", "1")
    bare_console("export-model", "made", "--best", "best")

    assert ran.lines == [f"Exported the model of trial 0 (step 3) to {here / 'out' / 'model'}."]
    told = [(here / each / "model.json").read_text() for each in ("out/model", "first", "best")]
    assert told == [
        '{"weight": 1.5, "iteration": 3}',
        '{"weight": 0.5, "iteration": 1}',
        '{"weight": 1.5, "iteration": 3}',
    ]
    assert sorted(path.name for path in (here / "out").iterdir()) == ["model"]


@pytest.mark.nightly
@pytest.mark.row("B13")
def test_checkpoint_and_model_of_the_best_trial_come_from_the_best_step(bare_console, here, create):
    source = FUNCTION.replace("1 / step", "abs(step - 2)")
    study = create("exported:train", source)

    bare_console("export-model", "made", "--best", "model")
    bare_console("export-checkpoint", "made", "--best", "saved")

    assert '"iteration": 2' in (here / "model" / "model.json").read_text()
    saved = (here / "saved" / "checkpoint.pkl").read_bytes()
    assert pickle.loads(saved) == {"weight": 0.5 * 2}
    assert study.best_trial.checkpoint.step == 3  # the newest checkpoint


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("train.export_model = export", ""), "exports no model. Give its class a method"),
        (("= export\n", "= 3\n"), "export_model is 3; give a function."),
        (("(pathlib.Path(directory)", "0 and (pathlib.Path(directory)"), "has written nothing"),
    ],
)
def test_trainable_that_exports_nothing_is_refused(bare_console, here, create, change, says):
    create("exported:train", FUNCTION.replace(*change))

    ran = bare_console("export-model", "made", "0", "model", code=1)

    assert says in ran.error
    assert not (here / "model").exists()
    assert [path for path in here.iterdir() if path.name.startswith(".model")] == []


@pytest.mark.nightly
def test_error_of_the_users_code_leaves_no_folder_and_shows_its_traceback(
    bare_console, here, create
):
    create("exported:train", FUNCTION.replace('    told = {"', '    1 / 0\n    told = {"'))

    ran = bare_console("export-model", "made", "0", "model", code=1)

    assert "ZeroDivisionError: division by zero" in ran.err
    assert "exported.py" in ran.err
    assert not (here / "model").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["export-checkpoint", "export-model"])
def test_home_of_an_unknown_user_is_refused(bare_console, here, create, command):
    create("exported:train", FUNCTION)

    ran = bare_console(command, "made", "0", "~no-such-user/model", code=2)

    assert ran.error.startswith("studydb: '~no-such-user/model' cannot be found")


@pytest.mark.slow
def test_export_model_does_not_replace_an_existing_folder(bare_console, here, create):
    create("exported:train", FUNCTION)
    (here / "model").mkdir()

    assert (
        "exists; name a directory"
        in bare_console("export-model", "made", "0", "model", code=1).error
    )


@pytest.mark.nightly
def test_damaged_checkpoint_is_not_given_to_the_users_code(bare_console, here, create):
    create("exported:train", FUNCTION)
    (newest,) = here.parent.rglob("checkpoints/*/*/*/3-*")
    newest.write_bytes(b"other")

    assert "is damaged" in bare_console("export-model", "made", "0", "model", code=1).error


def test_trainable_that_is_a_command_exports_no_model(
    bare_console, sqlite_url, monkeypatch, create_study
):
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_url)
    study = create_study("made", ["true", "{x}"], space={"x": 1}, num_trials=1, storage=sqlite_url)
    study.enqueue({}, checkpoint={"a": 1})

    ran = bare_console("export-model", "made", "0", "model", code=1)

    assert "`studydb export-checkpoint`" in ran.error
