"""
The row of an upload is stored before the first byte of the object is written.

A worker finds the uploads of ended attempts by these rows. For each upload, the worker deletes the
bytes first, then the row. The bytes stay if a checkpoint's row names them, or if the upload's row
names an object that is not the upload's own.
"""

from uuid import uuid4

import pytest
import sqlalchemy as sa
from harness.arrange import new_checkpoint, new_request
from harness.settings_requests import relocate
from msgspec import structs

from studydb.artifacts import DirectoryStore, Place
from studydb.artifacts.remote import RemoteStore
from studydb.db.schema import checkpoint, upload
from studydb.domain.errors import CheckpointError, LeaseLost
from studydb.domain.life.states import Reason
from studydb.lease import upload_collector
from studydb.lease.upload_collector import UploadCollector, collect_uploads
from studydb.operations.save import save
from studydb.operations.uploads import abandoned_uploads, begin_upload


@pytest.fixture
def store(database, study, tmp_path):
    study_store = DirectoryStore(tmp_path / "store")
    study_store.add_study(study.uuid)
    with database.begin() as txn:
        txn.run(sa.text("UPDATE study SET checkpoints = :url"), url=study_store.url)
    return study_store


def rows(database, table=upload):
    with database.begin(write=False) as txn:
        return txn.all(sa.select(table).order_by(table.c.id))


class Upload:
    """An upload of an attempt; `begin` stores its row, and tests write its bytes."""

    def __init__(self, run, study, store, *, step=1):
        self.uuid, self.run, self.database = str(uuid4()), run, run.worker.database
        trial = run.trial().uuid
        self.place = Place(study.uuid, trial, run.lease.attempt, step, self.uuid)
        self.url = "/".join((store.url, *self.place.parts))

    def begin(self):
        begin_upload(self.database, lease=self.run.lease, uuid=self.uuid, url=self.url)
        return self

    def write_a_part(self, store):
        """Write the file that a process leaves in a directory if it is killed during the upload."""
        path = store.root.joinpath(*self.place.parts)
        path.parent.mkdir(parents=True)
        path.with_name(f".{path.name}.0a1b2c3d").write_bytes(b"half")


def save_in(store, run, study):
    """Report, and save a checkpoint in a store."""
    run.report(0.5)
    saved = Upload(run, study, store).begin()
    store.put_bytes(saved.place, b"saved")
    row = structs.replace(new_checkpoint(run.lease, step=1), uuid=saved.uuid, url=saved.url)
    save(run.worker.database, lease=run.lease, checkpoint=row)
    return saved


def test_upload_is_recorded_once_and_its_row_is_deleted_when_its_checkpoint_is_saved(
    database, study, worker, store
):
    run = worker.ask()
    run.report(0.5)
    begun = Upload(run, study, store).begin().begin()
    assert [(row.uuid, row.url, row.attempt) for row in rows(database)] == [
        (begun.uuid, begun.url, 1)
    ]

    new = structs.replace(new_checkpoint(run.lease, step=1), uuid=begun.uuid)
    save(database, lease=run.lease, checkpoint=new)

    assert rows(database) == []
    assert [row.uuid for row in rows(database, checkpoint)] == [begun.uuid]


def test_attempt_that_no_longer_holds_its_trial_cannot_begin_an_upload(
    database, study, worker, store
):
    run = worker.ask()
    late = Upload(run, study, store)
    run.finish(0.5)

    with pytest.raises(LeaseLost):
        late.begin()
    assert rows(database) == []


def test_uploads_of_the_running_attempt_are_kept_and_those_of_earlier_attempts_are_deleted(
    database, study, worker, store
):
    first = worker.ask()
    old = Upload(first, study, store).begin()
    store.put_bytes(old.place, b"old")
    assert abandoned_uploads(database, study) == []
    first.finish(outcome=Reason.PREEMPTED)
    second = worker.claim()
    new = Upload(second, study, store).begin()
    store.put_bytes(new.place, b"new")

    assert [one.uuid for one in abandoned_uploads(database, study)] == [old.uuid]
    assert collect_uploads(database, study) == 0

    assert [row.uuid for row in rows(database)] == [new.uuid]
    assert not store.exists(old.url)
    assert store.exists(new.url)


def test_unfinished_file_of_an_interrupted_upload_is_deleted(database, study, worker, store):
    run = worker.ask()
    Upload(run, study, store).begin().write_a_part(store)
    run.finish(0.5)

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert [found for found in store.root.rglob("*") if found.is_file()] == []


def test_unfinished_file_in_a_directory_that_was_moved_is_deleted(database, study, worker, store):
    """As when a person moves an SQLite file with its folder, the URL names none of the stores."""
    run = worker.ask()
    Upload(run, study, store).begin().write_a_part(store)
    run.finish(0.5)
    moved = store.root.rename(store.root.with_name("moved"))
    with database.begin() as txn:
        txn.run(sa.text("UPDATE study SET checkpoints = :url"), url=moved.as_uri())
    relocate(database, study, store.root.with_name("unused").as_uri(), new_request())

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert [found for found in moved.rglob("*") if found.is_file()] == []


def test_upload_is_collected_after_its_directory_was_moved_and_the_new_place_was_named(
    database, study, worker, store
):
    """The host sees the newest checkpoint of the old directory in the new one."""
    run = worker.ask()
    Upload(run, study, store, step=2).begin().write_a_part(store)
    kept = save_in(store, run, study)
    run.finish(0.5)
    moved = store.root.rename(store.root.with_name("moved"))
    relocate(database, study, moved.as_uri(), new_request())

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert [found.name for found in moved.rglob("*") if found.is_file()] == [kept.place.parts[-1]]


def test_upload_to_a_directory_is_collected_without_a_request_to_the_studys_bucket(
    database, study, worker, store, monkeypatch
):
    run = worker.ask()
    left = Upload(run, study, store).begin()
    store.put_bytes(left.place, b"left")
    run.finish(0.5)
    relocate(database, study, "s3://bucket/prefix", new_request())
    monkeypatch.setattr(RemoteStore, "delete_unfinished", lambda *_: 1 / 0)

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert not store.exists(left.url)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_row_of_an_upload_stays_on_a_host_that_has_not_mounted_the_store(
    database, study, worker, store, has_checkpoint
):
    run = worker.ask()
    if has_checkpoint:
        save_in(store, run, study)
    left = Upload(run, study, store).begin()
    store.put_bytes(left.place, b"left")
    run.finish(0.5)
    mounted, unmounted = store.root, store.root.with_name("unmounted")
    new = DirectoryStore(store.root.with_name("new"))
    new.add_study(study.uuid)
    relocate(database, study, new.url, new_request())

    mounted.rename(unmounted)
    assert collect_uploads(database, study) == 1
    assert [row.uuid for row in rows(database)] == [left.uuid]

    unmounted.rename(mounted)
    assert collect_uploads(database, study) == 0
    assert not store.exists(left.url)


def test_row_of_an_upload_stays_until_the_store_has_deleted_the_bytes(
    database, study, worker, store, monkeypatch
):
    run = worker.ask()
    left = Upload(run, study, store).begin()
    store.put_bytes(left.place, b"left")
    run.finish(0.5)

    def failing(*_):
        raise CheckpointError("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "delete_unfinished", failing)
        assert collect_uploads(database, study) == 1
    assert [row.uuid for row in rows(database)] == [left.uuid]

    assert collect_uploads(database, study) == 0
    assert rows(database) == []
    assert not store.exists(left.url)


def test_bytes_of_a_stored_checkpoint_stay_although_its_upload_is_recorded_once_more(
    database, study, worker, store
):
    run = worker.ask()
    late = Upload(run, study, store).begin()
    stored = store.put_bytes(late.place, b"state")
    checkpoint = structs.replace(new_checkpoint(run.lease, step=1), uuid=late.uuid, url=stored.url)
    save(database, lease=run.lease, checkpoint=checkpoint)
    late.begin()
    run.finish(outcome=Reason.PREEMPTED)

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert store.exists(stored.url)


def test_upload_row_that_names_a_foreign_object_is_deleted_without_the_object(
    database, study, worker, store
):
    run = worker.ask()
    kept = Upload(run, study, store)
    store.put_bytes(kept.place, b"kept")
    begin_upload(database, lease=run.lease, uuid=str(uuid4()), url=kept.url)
    begin_upload(database, lease=run.lease, uuid=str(uuid4()), url="file:///etc/passwd")
    run.finish(0.5)

    assert collect_uploads(database, study) == 0

    assert rows(database) == []
    assert store.exists(kept.url)


def test_all_uploads_are_collected_although_one_query_finds_at_most_100(
    database, study, worker, store
):
    run = worker.ask()
    uploads = [Upload(run, study, store, step=step).begin() for step in range(1, 231)]
    run.finish(0.5)

    assert len(abandoned_uploads(database, study)) == 100
    assert collect_uploads(database, study) == 0
    assert rows(database) == []
    assert len(uploads) == 230


def test_process_searches_for_abandoned_uploads_once_a_minute_and_does_not_wait_for_the_store(  # noqa: PLR0917
    database, clock, study, worker, store, monkeypatch
):
    run = worker.ask()
    Upload(run, study, store).begin()
    run.finish(0.5)
    clock.advance(upload_collector.SETTLED_S)
    collector, now = UploadCollector(database, study), [1000.0]
    monkeypatch.setattr(upload_collector.time, "monotonic", lambda: now[0])

    collector.look()
    collector._thread.join()
    assert rows(database) == []
    looked = []
    database.observer = looked.append
    collector.look()
    assert looked == []
    now[0] += upload_collector.PAUSE_S
    collector.look()
    database.observer = None
    assert len([what for what in looked if "upload" in what]) == 1


def test_upload_is_not_collected_while_a_process_of_its_attempt_may_still_write(
    database, clock, study, worker, store
):
    run = worker.ask()
    begun = Upload(run, study, store).begin()
    run.finish(outcome=Reason.LOST)
    early, later = (UploadCollector(database, study) for _ in range(2))

    early.look()
    assert early._thread is None
    store.put_bytes(begun.place, b"from the process of a dead worker")

    clock.advance(upload_collector.SETTLED_S)
    later.look()
    later._thread.join()
    assert not store.exists(begun.url)
    assert rows(database) == []
