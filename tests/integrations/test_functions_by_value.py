"""
Workers refuse a function that was sent by value unless a key of their user signed it.

A function that is named by its import path needs such a signature, or a worker that was started
with `--allow-import` and the name of the function's module.
"""

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fleet.preloaded import run_studydb
from harness import arrange
from harness.commands import run_command
from harness.turns import sqlite_alone

import studydb
from studydb.db.schema import trainable
from studydb.domain.errors import StudyExists, Untrusted
from studydb.operations.create import load
from studydb.settings import load_keyring
from studydb.trainables import check_trusted
from studydb.trainables.describing import PYTHON_VERSION

storage_url = sqlite_alone

FACTOR = 3


def scaled(config):
    return {"loss": config["x"] * FACTOR}


def scaled_by(factor):
    def train(config, trial):
        trial.report({"loss": config["x"] * factor})

    return train


def create(storage, trainable, name="digits", **options):
    given = {"metric": "loss", "mode": "min", "space": {"x": 0.25}, "num_trials": 1}
    return studydb.create_study(name, trainable, storage=storage, **(given | options))


@dataclass
class Machine:
    """A user's account on a host, with its home, working directory and environment."""

    root: Path
    storage: str
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.home, self.workdir = self.root / "home", self.root / "work"
        for folder in (self.home, self.workdir):
            folder.mkdir(parents=True)

    @property
    def keys(self):
        return self.home / ".config" / "studydb" / "keys"

    def trust(self, database, allow_imports=()):
        """Check the study's function as this account's workers check it when they start."""
        study = load(database, "digits")
        return check_trusted(study.trainable, study.uuid, self.keyring(), allow_imports)

    def keyring(self):
        own = {"HOME": str(self.home), "STUDYDB_KEY_FILE": str(self.keys)}
        return load_keyring(own | self.environment)

    @property
    def variables(self):
        own = {"HOME": str(self.home), "STUDYDB_STORAGE": self.storage}
        return {**os.environ, **own, **self.environment}

    def run(self, *arguments, stdin=None):
        """Run Python with these arguments, check that it succeeds, and return what it printed."""
        command = [sys.executable, *arguments]
        ran = run_command(command, cwd=self.workdir, env=self.variables, input=stdin)
        assert ran.returncode == 0, ran
        assert "Traceback" not in ran.stderr
        return ran.stdout + ran.stderr

    def create(self, trainable, name="digits", x=0.25, **options):
        """Create a study, of one trial by default, as this account's user."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(self.home))
            patch.chdir(self.workdir)
            create(self.storage, trainable, name, space={"x": x}, **options).close()

    def work(self, study="digits", *options, code=0):
        """Run a worker, check that it exits with `code`, and return what it printed."""
        arguments = ("worker", "--study", study, *options)
        ended, printed = run_studydb(arguments, cwd=self.workdir, environment=self.variables)
        assert ended == code, printed
        assert "Traceback" not in printed or code
        return printed


@pytest.fixture
def first(tmp_path, storage_url):
    return Machine(tmp_path / "first", storage_url)


@pytest.fixture
def second(tmp_path, storage_url):
    return Machine(tmp_path / "second", storage_url)


def train(config):
    return config["x"] * FACTOR


MYTRAIN = """
from os import system
def train(config):
    return config["x"] * 3
"""


def trainable_row(database):
    with database.begin(write=False) as txn:
        (row,) = txn.all(trainable.select())
    return row


def trial_rows(database):
    return arrange.rows(database, "SELECT state, reason, best_value FROM v_trial ORDER BY number")


DONE = [("TERMINATED", "COMPLETED", 0.75)]

KERNEL = """
import sys, types
shell = types.ModuleType("__main__")
sys.modules["__main__"] = shell
for number, cell in enumerate(sys.stdin.read().split("# %%")):
    exec(compile(cell, f"<cell {number}>", "exec"), vars(shell))
"""

CELLS = """
import math
FACTOR = 2
# %%
def helper(x):
    return math.floor(x * FACTOR)
# %%
def train(config, trial):
    for step in range(3):
        trial.report({"loss": helper(config["x"]) + step})
# %%
import studydb
study = studydb.create_study(
    "digits", train, space={"x": 1.75}, metric="loss", mode="min", num_trials=2
)
print(study.run(workers=1))
# %%
FACTOR = 100
print("best", study.best_value)
study.close()
"""


@pytest.mark.nightly
def test_notebook_function_is_sent_with_the_definitions_of_other_cells(first, database):
    printed = first.run("-c", KERNEL, stdin=CELLS)

    assert "terminated=2" in printed
    assert "best 3.0" in printed
    assert trainable_row(database).kind == "pickle"


SCRIPT = """
import studydb
open("times.txt", "a").write("once\\n")
FACTOR = 3
def train(config):
    return config["x"] * FACTOR
study = studydb.create_study(
    "digits", train, space={"x": 0.25}, metric="loss", mode="min", num_trials=3
)
study.run(workers=2)
print("best", study.best_value)
"""


@pytest.mark.nightly
def test_script_without_a_main_guard_runs_once_and_workers_run_its_function(first, database):
    (first.workdir / "script.py").write_text(SCRIPT)

    printed = first.run("script.py")

    assert "best 0.75" in printed
    assert (first.workdir / "times.txt").read_text() == "once\n"
    assert trial_rows(database) == DONE * 3


@pytest.mark.slow
@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("function", "value"),
    [
        (scaled, 0.75),
        (scaled_by(5), 1.25),
        (lambda config: config["x"], 0.25),
    ],
    ids=["function", "closure", "lambda"],
)
def test_function_of_a_test_module_is_sent_by_value_and_signed(first, database, function, value):
    first.create(function)

    first.work()

    assert trial_rows(database) == [("TERMINATED", "COMPLETED", value)]
    stored = load(database, "digits").trainable
    (key,) = first.keyring().keys
    assert (stored.kind, stored.python_version) == ("pickle", PYTHON_VERSION)
    assert stored.signatures.keys() == {key.id}
    assert key.secret not in stored.source


def create_or_load(storage, function):
    return create(storage, function, load_if_exists=True)


@pytest.mark.slow
def test_edited_function_is_sent_again_and_later_trials_run_it(first, database):
    first.create(scaled_by(1), num_trials=2)
    first.work("digits", "--max-trials", "1")
    before = trainable_row(database)

    first.create(scaled_by(2), num_trials=2, load_if_exists=True)
    first.work()

    assert [value for *_, value in trial_rows(database)] == [0.25, 0.5]
    assert trainable_row(database).source != before.source
    assert arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'revised'") == [(1,)]


@pytest.mark.slow
def test_unchanged_function_is_not_sent_again(storage_url, database):
    function = scaled_by(2)
    for _ in range(2):
        create_or_load(storage_url, function).close()

    assert arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'revised'") == [(0,)]


def test_study_with_a_function_refuses_a_call_with_another_function_or_with_none(storage_url):
    create_or_load(storage_url, scaled).close()

    with pytest.raises(StudyExists, match="'digits' exists with another trainable"):
        create_or_load(storage_url, train)
    with pytest.raises(StudyExists, match=r"'digits' exists with the trainable .*, and none was"):
        create_or_load(storage_url, None)


def test_function_is_refused_for_an_existing_study_that_own_loops_run(storage_url):
    create_or_load(storage_url, None).close()

    words = r"'digits' exists without a trainable: .* or give no trainable\."
    with pytest.raises(StudyExists, match=words):
        create_or_load(storage_url, scaled)


def test_function_signed_by_another_key_is_not_replaced(storage_url, database, monkeypatch):
    create_or_load(storage_url, scaled_by(1)).close()
    before = trainable_row(database)
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")

    create_or_load(storage_url, scaled_by(2)).close()

    assert trainable_row(database) == before


def copy_key_file(first, second):
    second.keys.parent.mkdir(parents=True, exist_ok=True)
    second.keys.write_bytes(first.keys.read_bytes())
    second.keys.chmod(0o600)


def append_key_line(first, second):
    second.keyring()  # makes a key
    with second.keys.open("a") as keys:
        keys.write(first.keys.read_text())


def set_key_variable(first, second):
    second.environment["STUDYDB_SIGNING_KEY"] = first.keys.read_text().partition(":")[2].strip()


@pytest.mark.parametrize("give_key", [copy_key_file, append_key_line, set_key_variable])
def test_second_machine_with_the_key_trusts_the_function(first, second, database, give_key):
    first.create(train)
    with pytest.raises(Untrusted):
        second.trust(database)
    second.keys.unlink()
    give_key(first, second)

    second.trust(database)

    assert second.keys.exists() == (give_key is not set_key_variable)


def test_second_machine_with_the_key_runs_the_function(first, second, database):
    first.create(train)
    set_key_variable(first, second)

    second.work()

    assert trial_rows(database) == DONE
    assert not second.keys.exists()


def test_worker_without_the_key_is_refused_and_the_error_names_the_key_file(
    first, second, database
):
    first.create(train)

    printed = second.work(
        "digits", "--allow-import", "train", "--allow-import", train.__module__, code=1
    )

    assert printed == (
        f"studydb: The trainable {train.__module__ + ':train'!r} is not signed by a key in "
        f"{second.keys}. Copy the keys of the account that created the study (from its key file) to "
        "that file.\n"
    )
    assert trial_rows(database) == []


@pytest.mark.slow
def test_function_named_by_an_import_path_runs_without_the_key_if_its_module_is_allowed(
    first, second, database
):
    for machine in (first, second):
        (machine.workdir / "mytrain.py").write_text(MYTRAIN)
    first.create("mytrain:train")

    refused = second.work(code=1)
    second.work("digits", "--allow-import", "mytrain")

    assert refused.endswith("or start the worker with --allow-import mytrain.\n")
    assert trainable_row(database).kind == "import"
    assert trial_rows(database) == DONE


def test_function_sent_by_another_python_version_is_refused_before_a_claim(first, database):
    first.create(train)
    arrange.change(database, "UPDATE trainable SET python_version = '3.99'")

    printed = first.work(code=1)

    assert f"from Python 3.99, and this worker runs Python {PYTHON_VERSION}. Use the" in printed
    assert trial_rows(database) == []
    assert arrange.rows(database, "SELECT count(*) FROM worker") == [(0,)]


def test_function_named_by_an_import_path_runs_under_another_python_version(first, database):
    (first.workdir / "mytrain.py").write_text(MYTRAIN)
    first.create("mytrain:train")
    arrange.change(database, "UPDATE trainable SET python_version = '3.99'")

    first.work()

    assert trial_rows(database) == DONE


EVIL = b"\x80\x04cposix\nsystem\n\x8c\x0ctouch opened\x85R."
"""A pickle that runs `touch opened` when it is unpickled."""

CHANGES = [
    "DELETE FROM signature",
    "UPDATE signature SET key_id = '0123456789abcdef'",
    "UPDATE signature SET mac = '00'",
    "UPDATE trainable SET kind = 'class'",
    "UPDATE trainable SET workdir = '/tmp'",
]


def test_changed_bytes_of_a_function_are_never_unpickled(first, database):
    first.create(train)
    arrange.change(database, f"UPDATE trainable SET source = x'{EVIL.hex()}'")

    printed = first.work("digits", "--allow-import", train.__module__, code=1)

    assert "was changed after it was signed. Find out who wrote" in printed
    assert trial_rows(database) == []
    for change in CHANGES:
        arrange.change(database, change)
        with pytest.raises(Untrusted):
            first.trust(database, allow_imports=[train.__module__])
    assert not list(first.root.rglob("opened"))


def test_evil_pickle_creates_a_file_when_it_is_unpickled(first, monkeypatch):
    monkeypatch.chdir(first.workdir)

    pickle.loads(EVIL)

    assert (first.workdir / "opened").exists()


@pytest.mark.nightly
def test_bytes_signed_for_one_study_are_refused_in_another(first, database):
    first.create(train)
    first.create(scaled_by(5), "other")
    swap = "(SELECT max(id) FROM study) + (SELECT min(id) FROM study) - study_id"
    arrange.change(database, f"UPDATE trainable SET study_id = {swap}")

    for study in ("digits", "other"):
        assert "was changed after it was signed" in first.work(study, code=1)

    assert trial_rows(database) == []


NAMES = ["subprocess:check_output", "os:system", "mytrain:system", "mytrain:train.__globals__"]


def test_import_path_changed_by_sql_is_not_run(first, database):
    (first.workdir / "mytrain.py").write_text(MYTRAIN)
    first.create("mytrain:train", x="touch opened")

    for name in NAMES:
        arrange.change(database, f"UPDATE trainable SET name = '{name}'")
        with pytest.raises(Untrusted, match="was changed after it was signed"):
            first.trust(database)
    arrange.change(database, "DELETE FROM signature")
    for name in NAMES:
        arrange.change(database, f"UPDATE trainable SET name = '{name}'")
        with pytest.raises(Untrusted, match="is not signed by a key"):
            first.trust(database)
    arrange.change(database, "UPDATE trainable SET name = 'subprocess:check_output'")
    printed = first.work("digits", "--allow-import", "mytrain", code=1)

    assert "'subprocess:check_output' is not signed by a key" in printed
    assert not list(first.root.rglob("opened"))
    assert trial_rows(database) == []


def test_allow_import_refuses_functions_that_the_module_only_imports(first, database):
    (first.workdir / "mytrain.py").write_text(MYTRAIN)
    first.create("mytrain:train")
    arrange.change(database, "UPDATE trainable SET name = 'mytrain:system'")
    arrange.change(database, "DELETE FROM signature")

    printed = first.work("digits", "--allow-import", "mytrain", code=1)

    assert "'mytrain:system' is not defined in mytrain, and the study is not signed." in printed
    assert [state for state, *_ in trial_rows(database)] == ["PENDING"]
