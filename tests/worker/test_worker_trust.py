"""A worker runs what a key of its user signed, or what its command line allows; nothing else."""

import hashlib
import pickle
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleet.workers import TRAINABLES
from harness import arrange

from studydb.db.schema import attempt, checkpoint

ANOTHER_KEY = {"STUDYDB_SIGNING_KEY": "ab" * 32, "STUDYDB_KEY_FILE": "/nonexistent/keys"}


def test_unsigned_trainable_is_refused_and_the_error_names_the_cure(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:one_step")

    worker = stage.fleet.start(environment=ANOTHER_KEY)

    assert worker.exit_code() == 1
    assert worker.output() == (
        "studydb: The trainable 'obedient:one_step' is not signed by a key in /nonexistent/keys. "
        "Copy that file from the account that created the study (its lines can be added to yours), "
        "or start the worker with --allow-import obedient.\n"
    )
    assert stage.rows(attempt) == []


def test_unsigned_trainable_runs_if_its_module_is_allowed(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:one_step")

    worker = stage.fleet.start(environment=ANOTHER_KEY, allow_import="obedient", workdir=TRAINABLES)

    assert worker.exit_code() == 0, worker.output()
    assert stage.trial().reason == "COMPLETED"


def test_unsigned_trainable_is_searched_only_in_the_workers_own_directory(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:one_step")

    worker = stage.fleet.start(environment=ANOTHER_KEY, allow_import="obedient")

    assert worker.exit_code() == 1, worker.output()
    (told,) = stage.attempts()
    assert told.error_message.startswith("There is no module 'obedient', neither in")


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
    stage = sqlite_stage
    stage.create("obedient:one_step")
    arrange.change(stage.study.database, change)

    worker = stage.start()

    assert worker.exit_code() == 1
    assert "was changed after it was signed. Find out who wrote" in worker.output()
    assert "Traceback" not in worker.output()


class Evil:
    """What leaves a file behind when its pickle is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_checkpoint_that_no_worker_has_signed_is_never_opened(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:gated")
    first = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)
    first.end()
    harm = stage.folder / "harm"
    forged = pickle.dumps(Evil(harm))

    Path(urlsplit(stage.row(checkpoint).url).path).write_bytes(forged)
    told = f"digest = '{hashlib.sha256(forged).hexdigest()}'"
    arrange.change(stage.study.database, f"UPDATE checkpoint SET {told}")
    stage.open("all")
    second = stage.start()

    assert second.exit_code() == 0, second.output()
    assert not harm.exists()
    assert len(stage.events("checkpoint corrupt")) == 1
    assert [one.start_step for one in stage.attempts()] == [1, 1]
    assert stage.trial().reason == "COMPLETED"


def test_unpickling_the_forged_checkpoint_creates_the_file(tmp_path):
    pickle.loads(pickle.dumps(Evil(tmp_path / "harm")))

    assert (tmp_path / "harm").exists()
