"""An SQLite file that is moved, deleted or replaced while processes use it."""

import shutil
from pathlib import Path

import pytest
from harness import arrange

import studydb
from studydb.db import connect
from studydb.domain.errors import StorageMissing


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def delete(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


DISPLACED = {move: "was moved or deleted", delete: "was moved or deleted", replace: "was replaced"}

displaced = pytest.mark.parametrize("displace", DISPLACED, ids=lambda each: each.__name__)


@displaced
@pytest.mark.parametrize("write", [True, False])
def test_transaction_does_not_begin_in_a_displaced_file(sqlite_url, displace, write):
    database = connect(sqlite_url)
    arrange.new_study(database)
    displace(database.path)

    with pytest.raises(StorageMissing, match=DISPLACED[displace]), database.begin(write=write):
        pass
    database.close()


@displaced
def test_transaction_is_not_committed_to_a_displaced_file(sqlite_url, displace):
    database = connect(sqlite_url)

    def change():
        with database.begin() as txn:
            txn.raw("DELETE FROM event")
            displace(database.path)

    with pytest.raises(StorageMissing, match=DISPLACED[displace]):
        change()
    database.close()


def test_file_that_is_moved_back_can_be_used_again(sqlite_url):
    database = connect(sqlite_url)
    study = arrange.new_study(database)
    move(database.path)
    with pytest.raises(StorageMissing):
        arrange.enqueued(database, study)

    database.path.with_name("elsewhere.db").rename(database.path)

    assert arrange.enqueued(database, study) == 0
    database.close()


@displaced
def test_worker_ends_when_its_file_is_displaced(sqlite_stage, displace):
    stage = sqlite_stage
    stage.create("obedient:unhurried")
    worker = stage.start()
    stage.await_trial(lambda row: row.n_results > 0)

    displace(stage.study.database.path)

    assert worker.exit_code(60.0) == 1
    assert DISPLACED[displace] in worker.output()
    assert "COMPLETED" not in worker.output()
    assert "Traceback" not in worker.output()


def test_worker_ends_during_a_long_step_when_its_file_is_moved(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:gated")
    worker = stage.start(grace=1.0)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    move(stage.study.database.path)

    assert worker.exit_code(60.0) == 1
    assert DISPLACED[move] in worker.output()


def test_own_loop_raises_storage_missing_when_its_file_is_moved(sqlite_url):
    study = studydb.create_study(
        "mine",
        None,
        space={"x": studydb.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_trials=3,
        storage=sqlite_url,
    )
    trial = study.ask()
    move(study.database.path)

    with pytest.raises(StorageMissing):
        trial.finish()
    study.close()
