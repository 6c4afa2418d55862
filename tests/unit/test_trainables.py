"""What a study runs: how it is named, signed, found again and called."""

# The functions here are such as users write, and their modules appear while the tests run.
# ruff: noqa: ARG002, ARG005, PLC0415

import dataclasses
import pickle
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from studydb.domain.errors import TrainableError, Untrusted
from studydb.domain.records import Trainable, TrainableKind
from studydb.settings import Key, Keyring
from studydb.trainables import (
    Trust,
    call,
    check_signature,
    check_trusted,
    describe,
    load,
    returned_metrics,
    sign,
    signed_payload,
)

STUDY = str(uuid.uuid4())
RING = Keyring((Key(b"k" * 32),), Path("/srv/me/keys"))


def import_trainable(name, workdir="/recorded"):
    return Trainable(str(uuid.uuid4()), TrainableKind.IMPORT, name, str(workdir), "3.11")


@pytest.fixture(autouse=True)
def interpreter_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    (directory / "models" / "inner").mkdir(parents=True)
    (directory / "plain.py").write_text(
        "import os\nfrom os import system\n"
        "def train(config):\n    return config['lr']\n"
        "class Holder:\n    @staticmethod\n    def train(config):\n        return 0\n"
        "NUMBER = 3\n"
    )
    (directory / "models" / "__init__.py").write_text("raise RuntimeError('was imported')\n")
    (directory / "models" / "net.py").write_text("def train(config): ...\n")
    (directory / "models" / "inner" / "deep.py").write_text("def train(config): ...\n")
    (directory / "broken.py").write_text("import no_such_library\ndef train(config): ...\n")
    return directory


def forget(module, directory):
    del sys.modules[module]
    sys.path.remove(str(directory))


# describe


def test_function_that_a_fresh_interpreter_finds_is_named(project):
    sys.path.insert(0, str(project))
    import plain

    trainable = describe(plain.train, workdir=project)
    static = describe(plain.Holder.train, workdir=project)

    assert (trainable.kind, trainable.name) == ("import", "plain:train")
    assert (static.kind, static.name) == ("import", "plain:Holder.train")
    assert trainable.workdir == str(project)
    assert trainable.source is None
    assert load(trainable, [project]) is plain.train


def test_function_of_a_module_that_is_elsewhere_is_sent_by_value(project, tmp_path):
    sys.path.insert(0, str(project))
    import plain

    trainable = describe(plain.train, workdir=tmp_path)

    assert (trainable.kind, trainable.name) == ("pickle", "plain:train")
    assert opened_elsewhere(trainable) == 0.5


def test_module_of_the_same_name_at_another_place_is_not_the_same_object(project, tmp_path):
    (tmp_path / "plain.py").write_text("def train(config): return 'impostor'\n")
    sys.path.insert(0, str(project))
    import plain

    assert describe(plain.train, workdir=tmp_path).kind == "pickle"


def test_functions_without_a_findable_name_are_sent_by_value(project):
    offset = 1

    def local(config):
        return config["lr"] + offset

    for function, value in [(local, 1.5), (lambda config: config["lr"], 0.5)]:
        trainable = describe(function, workdir=project)
        assert trainable.kind == "pickle"
        assert trainable.python_version == "{}.{}".format(*sys.version_info)
        assert opened_elsewhere(trainable) == value


def test_function_of_main_is_sent_by_value(project):
    script = (
        "import sys; from studydb.trainables import describe\n"
        "def train(config): return 1\n"
        f"print(describe(train, workdir={str(project)!r}).kind)"
    )

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert answer.stdout.strip() == "pickle"


def test_replaced_function_is_not_taken_for_the_one_that_has_its_name(project):
    sys.path.insert(0, str(project))
    import plain

    original = plain.train
    plain.train = lambda config: None

    assert describe(original, workdir=project).kind == "pickle"


def test_helpers_in_modules_that_workers_cannot_find_travel_along(project, tmp_path):
    sys.path.insert(0, str(project))
    (project / "user.py").write_text(
        "import plain\ndef train(config):\n    return plain.train(config) * plain.NUMBER\n"
    )
    import user

    trainable = describe(user.train, workdir=tmp_path)

    assert trainable.kind == "pickle"
    assert opened_elsewhere(trainable) == 1.5
    assert "plain" not in cloudpickle.list_registry_pickle_by_value()


def opened_elsewhere(trainable):
    """What a function sent by value returns in an interpreter that cannot import its module."""
    script = (
        "import pickle, sys\n"
        "function = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(pickle.dumps(function({'lr': 0.5})))"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        check=True,
        cwd="/",
        input=trainable.source,
    )
    return pickle.loads(answer.stdout)


def test_path_is_checked_without_running_the_module(project):
    assert describe("plain:train", workdir=project).kind == "import"
    assert describe("models.net:train", workdir=project).name == "models.net:train"
    assert describe("models.inner.deep:train", workdir=project).kind == "import"
    assert describe("broken:train", workdir=project).kind == "import"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("plain", "module:function"),
        ("plain:", "module:function"),
        ("../plain:train", "module:function"),
        ("plian:train", "no module 'plian'"),
        ("models.nett:train", "no module 'models.nett'"),
        ("plain:trian", "has no 'trian'"),
    ],
)
def test_path_to_nothing_is_refused(project, path, complaint):
    with pytest.raises(TrainableError, match=complaint):
        describe(path, workdir=project)


def test_function_that_cannot_be_pickled_names_the_way_out(project):
    lock = threading.Lock()

    def train(config):
        return lock.locked()

    with pytest.raises(TrainableError, match=f"finds from {project}"):
        describe(train, workdir=project)


def test_function_that_carries_its_data_with_it_is_refused(project):
    data = np.zeros(3 << 20)

    with pytest.raises(TrainableError, match="24 MiB of data"):
        describe(lambda config: data.sum(), workdir=project)


# load


def test_import_looks_in_the_workers_directory_then_in_the_recorded_one(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "plain.py").write_text("def train(config): return 'the worker'\n")

    mine = load(import_trainable("plain:train"), [other, project])
    forget("plain", other)
    recorded = load(import_trainable("plain:train"), [tmp_path, project])

    assert mine({}) == "the worker"
    assert recorded({"lr": 1}) == 1
    assert sys.path[0] == str(project)


def test_missing_module_names_both_directories(project, tmp_path):
    with pytest.raises(TrainableError) as refusal:
        load(import_trainable("nowhere:train"), [tmp_path, project])

    assert f"neither in {tmp_path} nor in {project}" in str(refusal.value)
    assert "--workdir" in str(refusal.value)


def test_error_inside_the_module_comes_through(project):
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load(import_trainable("broken:train"), [project])


def test_missing_function_suggests_a_near_name(project):
    with pytest.raises(TrainableError, match="Did you mean 'train'"):
        load(import_trainable("plain:trian"), [project])


def test_name_of_something_else_than_a_function_is_refused(project):
    with pytest.raises(TrainableError, match="is a int"):
        load(import_trainable("plain:NUMBER"), [project])


def test_unknown_kind_is_refused(project):
    unknown = dataclasses.replace(import_trainable("plain:train"), kind="command")

    with pytest.raises(TrainableError, match="'command'"):
        load(unknown, [project])


def test_pickle_of_another_python_names_both_versions(project):
    trainable = dataclasses.replace(
        describe(lambda config: 1, workdir=project), python_version="3.4"
    )

    with pytest.raises(TrainableError) as refusal:
        load(trainable, [project])

    assert "Python 3.4" in str(refusal.value)
    assert "Python {}.{}".format(*sys.version_info) in str(refusal.value)


def test_pickle_that_needs_a_missing_module_names_it(project, tmp_path):
    sys.path.insert(0, str(project))
    import plain

    source = pickle.dumps(plain.train)
    trainable = Trainable(
        "u", TrainableKind.PICKLE, "f", "/", "{}.{}".format(*sys.version_info), source
    )
    forget("plain", project)

    with pytest.raises(TrainableError, match=f"'plain'.*neither in {tmp_path} nor in"):
        load(trainable, [tmp_path, tmp_path / "empty"])


def test_damaged_pickle_is_a_trainable_error(project):
    trainable = describe(lambda config: 1, workdir=project)

    with pytest.raises(TrainableError, match="cannot be opened"):
        load(dataclasses.replace(trainable, source=trainable.source[:-5]), [project])


def test_name_that_is_only_allowed_cannot_reach_what_the_module_imported(project):
    with pytest.raises(TrainableError, match="is not defined in plain"):
        load(import_trainable("plain:system"), [project], own_only=True)

    assert load(import_trainable("plain:train"), [project], own_only=True)({"lr": 1}) == 1


# trust


def test_what_a_key_of_ones_own_signed_may_run():
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    assert check_trusted(trainable, STUDY, RING) is Trust.SIGNED


def test_colleagues_can_sign_the_same_source():
    colleague = Keyring((Key(b"c" * 32),), Path("/srv/you/keys"))
    trainable = sign(sign(import_trainable("train:main"), STUDY, RING), STUDY, colleague)

    assert check_trusted(trainable, STUDY, RING) is Trust.SIGNED
    assert check_trusted(trainable, STUDY, colleague) is Trust.SIGNED


@pytest.mark.parametrize(
    "change",
    [
        {"uuid": "another"},
        {"kind": "pickle"},
        {"name": "subprocess:check_output"},
        {"workdir": "/tmp"},
        {"source": b"cos\nsystem\n."},
    ],
)
def test_every_change_of_a_signed_row_is_noticed(change):
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    with pytest.raises(Untrusted, match="changed after it was signed"):
        check_trusted(dataclasses.replace(trainable, **change), STUDY, RING)


def test_signature_holds_for_one_study_alone():
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    with pytest.raises(Untrusted):
        check_trusted(trainable, str(uuid.uuid4()), RING)


def test_payload_keeps_its_fields_apart():
    one = dataclasses.replace(import_trainable("a:bc"), uuid="u", workdir="d")
    other = dataclasses.replace(one, name="a:b", workdir="cd")

    assert signed_payload(one, STUDY) != signed_payload(other, STUDY)


def test_unsigned_is_refused_with_the_cure():
    with pytest.raises(Untrusted) as refusal:
        check_trusted(import_trainable("subprocess:check_output"), STUDY, RING)

    assert "/srv/me/keys" in str(refusal.value)
    assert "--allow-import subprocess" in str(refusal.value)


@pytest.mark.parametrize("prefix", ["lab", "lab.vision", "lab.vision:train"])
def test_allowed_prefix_covers_what_is_below_it(prefix):
    trainable = import_trainable("lab.vision:train")

    assert check_trusted(trainable, STUDY, RING, [prefix]) is Trust.ALLOWED


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("labor:train", "lab"),
        ("lab.visionary:train", "lab.vision"),
        ("lab.vision:train2", "lab.vision:train"),
        ("subprocess:check_output", "lab"),
        ("lab:os.system", "lab"),
        ("lab.vision", "lab"),
        ("lab:train\n", "lab"),
        ("lab:train", ""),
    ],
)
def test_allowed_prefix_covers_nothing_else(name, prefix):
    with pytest.raises(Untrusted):
        check_trusted(import_trainable(name), STUDY, RING, [prefix])


def test_pickle_is_never_allowed_by_prefix():
    trainable = dataclasses.replace(import_trainable("lab:train"), kind="pickle", source=b"x")

    with pytest.raises(Untrusted) as refusal:
        check_trusted(trainable, STUDY, RING, ["lab"])

    assert "--allow-import" not in str(refusal.value)


# call


class FakeTrial:
    def __init__(self, checkpoint=None):
        self.metric = "loss"
        self.checkpoint = checkpoint
        self.reports = []

    def report(self, metrics, checkpoint=None):
        self.reports.append((metrics, checkpoint))


class FakeCheckpoint:
    path = Path("/some/where")


def test_every_known_signature_gets_what_it_asks_for():
    trial = FakeTrial(FakeCheckpoint())

    def with_all(config, reporter, *, checkpoint_dir=None, trial, verbose=False, **others):
        reporter(loss=1, accuracy=0.5)
        reporter({"loss": 2}, checkpoint="here")
        return config, checkpoint_dir, trial, verbose, others

    def positional(config, trial, /):
        return trial

    assert call(lambda config: config["lr"], {"lr": 3}, trial) == 3
    assert call(with_all, {}, trial) == ({}, "/some/where", trial, False, {})
    assert trial.reports == [({"loss": 1, "accuracy": 0.5}, None), ({"loss": 2}, "here")]
    assert call(positional, {}, trial) is trial
    assert call(lambda config, checkpoint_dir=None: checkpoint_dir, {}, FakeTrial()) is None
    assert call(lambda config, trial=None: trial, {}, trial) is trial
    assert call(lambda *values: values, {}, trial) == ({},)


def test_generator_reports_what_it_yields_and_returns_the_rest():
    trial = FakeTrial()

    def train(config):
        yield 0.5
        yield {"loss": 0.4, "accuracy": 1}
        yield
        return 0.3

    assert call(train, {}, trial) == 0.3
    assert trial.reports == [({"loss": 0.5}, None), ({"loss": 0.4, "accuracy": 1}, None)]


def test_generator_is_closed_when_a_report_raises():
    closed = []

    class Stopping(FakeTrial):
        def report(self, metrics, checkpoint=None):
            raise KeyboardInterrupt

    def train(config):
        try:
            yield 0.5
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        call(train, {}, Stopping())

    assert closed == [True]


async def coroutine(config): ...


async def async_generator(config):
    yield


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda: None, "takes no config"),
        (lambda **named: None, "takes no config"),
        (lambda *, config: None, "takes no config"),
        (lambda config, epochs: None, "requires 'epochs'"),
        (lambda config, *, data: None, "requires 'data'"),
        (coroutine, "async"),
        (async_generator, "async"),
        (FakeTrial, "is a class"),
        (3, "is a int"),
    ],
)
def test_signature_that_cannot_be_served_is_refused_before_a_worker_sees_it(function, complaint):
    with pytest.raises(TrainableError, match=complaint):
        check_signature(function)


def test_function_without_a_signature_is_given_the_config():
    assert call([].extend, {"a": 1}, FakeTrial()) is None


def test_returned_values_become_metrics():
    assert returned_metrics(None, "loss") is None
    assert returned_metrics(2, "loss") == {"loss": 2}
    assert returned_metrics(np.float32(0.5), "loss") == {"loss": 0.5}
    assert returned_metrics({"loss": 1, "a": 2}, "loss") == {"loss": 1, "a": 2}


@pytest.mark.parametrize("value", ["0.5", True, [0.5], object()])
def test_returned_value_that_is_no_metric_is_refused(value):
    with pytest.raises(TrainableError, match="return a dict of metrics"):
        returned_metrics(value, "loss")
