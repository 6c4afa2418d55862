"""Trainables: describing, signing, finding and calling the function that a study runs."""

# The functions below are written as users write them, which breaks the rules ARG002 and ARG005 of
# ruff. A test imports a module that it has written, which breaks PLC0415.
# ruff: noqa: ARG002, ARG005, PLC0415

import importlib
import pickle
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from harness.refusal import check_refused
from msgspec import structs

import studydb
from studydb.domain.errors import TrainableError, Untrusted
from studydb.domain.trainable import Trainable, TrainableKind
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
def restored_imports(monkeypatch):
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


@pytest.fixture
def plain(project):
    sys.path.insert(0, str(project))
    return importlib.import_module("plain")


def forget(module, directory):
    del sys.modules[module]
    sys.path.remove(str(directory))


# describe


def test_function_that_a_fresh_interpreter_finds_is_described_by_its_path(project, plain):
    trainable = describe(plain.train, workdir=project)
    static = describe(plain.Holder.train, workdir=project)

    assert (trainable.kind, trainable.name) == ("import", "plain:train")
    assert (static.kind, static.name) == ("import", "plain:Holder.train")
    assert trainable.workdir == str(project)
    assert trainable.source is None
    assert load(trainable, [project]) is plain.train


def test_function_of_a_module_outside_the_workdir_is_pickled(project, plain, tmp_path):
    trainable = describe(plain.train, workdir=tmp_path)

    assert (trainable.kind, trainable.name) == ("pickle", "plain:train")
    assert returned_elsewhere(trainable) == 0.5


def test_function_is_pickled_if_the_workdir_has_another_module_of_the_same_name(
    project, plain, tmp_path
):
    (tmp_path / "plain.py").write_text("def train(config): return 'impostor'\n")
    assert describe(plain.train, workdir=tmp_path).kind == "pickle"


def test_local_functions_and_lambdas_are_pickled(project):
    offset = 1

    def local(config):
        return config["lr"] + offset

    for function, value in [(local, 1.5), (lambda config: config["lr"], 0.5)]:
        trainable = describe(function, workdir=project)
        assert trainable.kind == "pickle"
        assert trainable.python_version == "{}.{}".format(*sys.version_info)
        assert returned_elsewhere(trainable) == value


def test_function_of_main_is_pickled(project):
    script = (
        "import sys; from studydb.trainables import describe\n"
        "def train(config): return 1\n"
        f"print(describe(train, workdir={str(project)!r}).kind)"
    )

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert answer.stdout.strip() == "pickle"


def test_function_whose_name_refers_to_another_function_is_pickled(project, plain):
    original = plain.train
    plain.train = lambda config: None

    assert describe(original, workdir=project).kind == "pickle"


def test_modules_that_workers_cannot_find_are_pickled_with_the_function(project, tmp_path):
    sys.path.insert(0, str(project))
    (project / "user.py").write_text(
        "import plain\ndef train(config):\n    return plain.train(config) * plain.NUMBER\n"
    )
    import user

    trainable = describe(user.train, workdir=tmp_path)

    assert trainable.kind == "pickle"
    assert returned_elsewhere(trainable) == 1.5
    assert "plain" not in cloudpickle.list_registry_pickle_by_value()


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_function_that_imports_a_library_of_another_environment_is_described_by_its_path(
    project, tmp_path, folder
):
    library = tmp_path / "other" / folder
    library.mkdir(parents=True)
    (library / "installed.py").write_text("import threading\nLOCK = threading.Lock()\n")
    sys.path[:0] = [str(project), str(library)]  # as PYTHONPATH does
    (project / "user.py").write_text("import installed\ndef train(config): return installed.LOCK\n")
    import user

    trainable = describe(user.train, workdir=project)

    assert (trainable.kind, trainable.name) == ("import", "user:train")


def returned_elsewhere(trainable):
    """Return a pickled function's value at lr=0.5 in an interpreter without its module."""
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


def test_import_path_is_checked_without_running_the_module(project):
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
def test_path_that_names_no_function_is_refused(project, path, complaint):
    with pytest.raises(TrainableError, match=complaint):
        describe(path, workdir=project)


def test_function_that_cannot_be_pickled_is_refused_with_the_cure(project):
    lock = threading.Lock()

    def train(config):
        return lock.locked()

    with pytest.raises(TrainableError, match=f"finds from {project}"):
        describe(train, workdir=project)


def test_function_that_pickles_to_more_than_16_mib_is_refused(project):
    data = np.zeros(3 << 20)

    with pytest.raises(TrainableError, match="24 MiB of data"):
        describe(lambda config: data.sum(), workdir=project)


# load


def test_directory_of_the_worker_is_searched_before_the_directory_of_the_study(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "plain.py").write_text("def train(config): return 'the worker'\n")

    mine = load(import_trainable("plain:train"), [other, project])
    forget("plain", other)
    recorded = load(import_trainable("plain:train"), [tmp_path, project])

    assert mine({}) == "the worker"
    assert recorded({"lr": 1}) == 1
    assert sys.path[0] == str(project)


def test_error_about_a_missing_module_names_both_directories(project, tmp_path):
    words = [f"neither in {tmp_path} nor in {project}", "--workdir"]
    trainable = import_trainable("nowhere:train")
    check_refused(words, load, trainable, [tmp_path, project], error=TrainableError)


def test_error_raised_by_the_module_is_not_wrapped(project):
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load(import_trainable("broken:train"), [project])


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("plain:trian", "import", "Did you mean 'train'"),
        ("plain:NUMBER", "import", "is an int"),
        ("plain:train", "wasm", "'wasm'"),
    ],
)
def test_wrong_name_or_kind_of_a_trainable_is_refused_by_load(project, name, kind, why):
    with pytest.raises(TrainableError, match=why):
        load(structs.replace(import_trainable(name), kind=kind), [project])


def test_pickle_of_another_python_version_is_refused_and_both_versions_are_named(project):
    trainable = structs.replace(describe(lambda config: 1, workdir=project), python_version="3.4")

    words = ["Python 3.4", "Python {}.{}".format(*sys.version_info)]
    check_refused(words, load, trainable, [project], error=TrainableError)


def test_refusal_of_a_pickle_that_needs_a_missing_module_names_the_module(project, plain, tmp_path):
    source = pickle.dumps(plain.train)
    trainable = Trainable(
        "u", TrainableKind.PICKLE, "f", "/", "{}.{}".format(*sys.version_info), source
    )
    forget("plain", project)

    with pytest.raises(TrainableError, match=f"'plain'.*neither in {tmp_path} nor in"):
        load(trainable, [tmp_path, tmp_path / "empty"])


def test_damaged_pickle_raises_trainable_error(project):
    trainable = describe(lambda config: 1, workdir=project)

    with pytest.raises(TrainableError, match="cannot be opened"):
        load(structs.replace(trainable, source=trainable.source[:-5]), [project])


def test_load_with_own_only_refuses_a_function_that_the_module_has_imported(project):
    with pytest.raises(TrainableError, match="is not defined in plain"):
        load(import_trainable("plain:system"), [project], own_only=True)

    assert load(import_trainable("plain:train"), [project], own_only=True)({"lr": 1}) == 1


# trust


def test_trainable_signed_by_a_key_of_the_keyring_is_trusted():
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    assert check_trusted(trainable, STUDY, RING) is Trust.SIGNED


def test_trainable_signed_by_two_users_is_trusted_by_both():
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
def test_changed_trainable_is_refused_despite_its_signature(change):
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    with pytest.raises(Untrusted, match="changed after it was signed"):
        check_trusted(structs.replace(trainable, **change), STUDY, RING)


def test_signature_is_valid_for_one_study_only():
    trainable = sign(import_trainable("train:main"), STUDY, RING)

    with pytest.raises(Untrusted):
        check_trusted(trainable, str(uuid.uuid4()), RING)


def test_signed_payload_differs_when_bytes_move_between_fields():
    one = structs.replace(import_trainable("a:bc"), uuid="u", workdir="d")
    other = structs.replace(one, name="a:b", workdir="cd")

    assert signed_payload(one, STUDY) != signed_payload(other, STUDY)


def test_refusal_of_an_unsigned_trainable_says_how_to_allow_it():
    words = ["/srv/me/keys", "--allow-import subprocess"]
    trainable = import_trainable("subprocess:check_output")
    check_refused(words, check_trusted, trainable, STUDY, RING, error=Untrusted)


@pytest.mark.parametrize("prefix", ["lab", "lab.vision", "lab.vision:train"])
def test_allowed_prefix_covers_package_module_or_function(prefix):
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
def test_allowed_prefix_does_not_cover_other_names(name, prefix):
    with pytest.raises(Untrusted):
        check_trusted(import_trainable(name), STUDY, RING, [prefix])


def test_pickle_is_never_allowed_by_prefix():
    trainable = structs.replace(import_trainable("lab:train"), kind="pickle", source=b"x")

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


@pytest.mark.row("D2")
def test_call_gives_trial_reporter_and_checkpoint_dir_to_parameters_of_these_names():
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

    def positional_after_a_default(config, other=3, trial=None, /):
        return other, trial

    assert call(positional, {}, trial) is trial
    assert call(positional_after_a_default, {}, trial) == (3, trial)
    assert call(lambda config, checkpoint_dir=None: checkpoint_dir, {}, FakeTrial()) is None
    assert call(lambda config, trial=None: trial, {}, trial) is trial
    assert call(lambda *values: values, {}, trial) == ({},)


def test_generator_reports_the_yielded_metrics_and_returns_its_value():
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


@pytest.mark.row("D2")
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
        (3, "is an int"),
    ],
)
def test_function_that_studydb_cannot_call_is_refused(function, complaint):
    with pytest.raises(TrainableError, match=complaint):
        check_signature(function)


def test_builtin_function_is_called_with_the_config():
    assert call([].extend, {"a": 1}, FakeTrial()) is None


def test_returned_number_or_dict_becomes_metrics():
    assert returned_metrics(None, "loss") is None
    assert returned_metrics(2, "loss") == {"loss": 2}
    assert returned_metrics(np.float32(0.5), "loss") == {"loss": 0.5}
    assert returned_metrics({"loss": 1, "a": 2}, "loss") == {"loss": 1, "a": 2}


@pytest.mark.parametrize("value", ["0.5", True, [0.5], object()])
def test_returned_value_that_is_not_a_metric_is_refused(value):
    with pytest.raises(TrainableError, match="return a dict of metrics"):
        returned_metrics(value, "loss")


class NoBase:
    def step(self):
        return {}


class NoStep(studydb.Trainable):
    pass


class NoLoad(studydb.Trainable):
    def step(self):
        return {}

    def save_checkpoint(self, directory):
        return {}


class WithArguments(studydb.Trainable):
    def __init__(self, size):
        self.size = size

    def step(self):
        return {}


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (NoBase, "does not inherit studydb.Trainable"),
        (NoStep, "has no method step"),
        (NoLoad, "has no method load_checkpoint"),
        (WithArguments, "takes size in __init__"),
    ],
)
def test_class_that_cannot_be_a_trainable_is_refused(cls, words):
    with pytest.raises(TrainableError, match=words):
        check_signature(cls)
