"""A worker runs and unpickles only what a key of its user signed or its command line allows."""

import hashlib
import pickle
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleet.workers import TRAINABLES
from harness import arrange

from studydb.db.schema import attempt, checkpoint


@pytest.fixture
def stage_without_the_key(sqlite_stage, monkeypatch):
    """A study and its workers, which do not have the key that signed the study's trainable."""
    sqlite_stage.create("obedient:one_step")
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")
    return sqlite_stage


def test_trainable_signed_by_an_unknown_key_is_refused_and_the_error_names_the_cure(
    stage_without_the_key,
):
    worker = stage_without_the_key.start()

    assert worker.exit_code() == 1
    assert worker.output() == (
        "studydb: The trainable 'obedient:one_step' is not signed by a key in /nonexistent/keys. "
        "Copy the keys of the account that created the study (from its key file) to that file, "
        "or start the worker with --allow-import obedient.\n"
    )
    assert stage_without_the_key.rows(attempt) == []


def test_trainable_signed_by_an_unknown_key_runs_if_its_module_is_allowed(stage_without_the_key):
    worker = stage_without_the_key.start(allow_import="obedient", workdir=TRAINABLES)

    assert worker.exit_code() == 0, worker.output()
    assert stage_without_the_key.trial().reason == "COMPLETED"


def test_allowed_module_is_not_looked_up_in_the_directory_recorded_in_the_study(
    stage_without_the_key,
):
    worker = stage_without_the_key.start(allow_import="obedient")

    assert worker.exit_code() == 1, worker.output()
    (attempt_row,) = stage_without_the_key.attempts()
    assert attempt_row.error_message.startswith("There is no module 'obedient', neither in")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE trainable SET name = 'os:system'",
        "UPDATE trainable SET workdir = '/tmp'",
        "UPDATE trainable SET kind = 'pickle', source = x'80044e2e'",
        "UPDATE study SET uuid = '00000000-0000-4000-8000-000000000000'",
        "UPDATE signature SET mac = '00'",
    ],
    ids=["name", "workdir", "source", "study", "signature"],
)
def test_trainable_that_was_changed_in_the_database_is_refused(sqlite_stage, change):
    sqlite_stage.create("obedient:one_step")
    arrange.change(sqlite_stage.study.database, change)

    worker = sqlite_stage.start()

    assert worker.exit_code() == 1, worker.output()
    assert "was changed after it was signed. Find out who wrote" in worker.output()
    assert "Traceback" not in worker.output()


class CreatesFile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.slow
def test_checkpoint_that_no_worker_has_signed_is_never_unpickled(sqlite_stage):
    sqlite_stage.create("obedient:gated")
    first = sqlite_stage.start()
    sqlite_stage.await_trial(lambda row: row.checkpoint_step == 1)
    first.end()
    created = sqlite_stage.folder / "created"
    forged = pickle.dumps(CreatesFile(created))

    Path(urlsplit(sqlite_stage.row(checkpoint).url).path).write_bytes(forged)
    digest = hashlib.sha256(forged).hexdigest()
    arrange.change(sqlite_stage.study.database, f"UPDATE checkpoint SET digest = '{digest}'")
    sqlite_stage.open_gate("all")
    second = sqlite_stage.start()

    assert second.exit_code() == 0, second.output()
    assert not created.exists()
    assert len(sqlite_stage.events("checkpoint corrupt")) == 1
    assert [one.start_step for one in sqlite_stage.attempts()] == [1, 1]
    assert sqlite_stage.trial().reason == "COMPLETED"


def test_unpickling_the_forged_checkpoint_creates_the_file(tmp_path):
    pickle.loads(pickle.dumps(CreatesFile(tmp_path / "created")))

    assert (tmp_path / "created").exists()
