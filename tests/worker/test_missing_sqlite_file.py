"""No process goes on with an SQLite file that was displaced (moved, deleted or replaced)."""

import shutil
from contextlib import closing
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


@pytest.fixture
def database(sqlite_url):
    with closing(connect(sqlite_url)) as database:
        yield database


DISPLACED = {move: "was moved or deleted", delete: "was moved or deleted", replace: "was replaced"}

each_way = pytest.mark.parametrize("displace", DISPLACED, ids=lambda way: way.__name__)


@each_way
@pytest.mark.parametrize("write", [True, False])
def test_transaction_does_not_begin_in_a_displaced_file(database, displace, write):
    arrange.new_study(database)
    displace(database.path)

    with pytest.raises(StorageMissing, match=DISPLACED[displace]), database.begin(write=write):
        pass


@each_way
def test_transaction_is_not_committed_to_a_displaced_file(database, displace):
    def change():
        with database.begin() as txn:
            txn.raw("DELETE FROM event")
            displace(database.path)

    with pytest.raises(StorageMissing, match=DISPLACED[displace]):
        change()


def test_file_that_is_moved_back_can_be_used_again(database):
    study = arrange.new_study(database)
    move(database.path)
    with pytest.raises(StorageMissing):
        arrange.enqueued(database, study)

    database.path.with_name("elsewhere.db").rename(database.path)

    assert arrange.enqueued(database, study) == 0


@pytest.mark.nightly
@each_way
def test_worker_ends_when_its_file_is_displaced(sqlite_stage, displace):
    sqlite_stage.create("obedient:unhurried")
    worker = sqlite_stage.start()
    sqlite_stage.await_result()

    displace(sqlite_stage.study.database.path)

    assert worker.exit_code(60.0) == 1
    assert DISPLACED[displace] in worker.output()
    assert "COMPLETED" not in worker.output()
    assert "Traceback" not in worker.output()


@pytest.mark.nightly
def test_worker_ends_during_a_long_step_when_its_file_is_moved(sqlite_stage):
    sqlite_stage.create("obedient:gated")
    worker = sqlite_stage.start(grace=1.0)
    sqlite_stage.await_trial(lambda row: row.checkpoint_step == 1)

    move(sqlite_stage.study.database.path)

    assert worker.exit_code(60.0) == 1
    assert DISPLACED[move] in worker.output()


def test_own_loop_raises_storage_missing_when_its_file_is_moved(sqlite_url):
    study = studydb.create_study("mine", None, metric="loss", mode="min", storage=sqlite_url)
    trial = study.ask()
    move(study.database.path)

    with pytest.raises(StorageMissing):
        trial.finish()
    study.close()
