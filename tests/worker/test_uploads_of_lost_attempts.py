"""A worker deletes objects that an attempt's process writes after the attempt's lease is lost."""

from uuid import uuid4

import pytest
import sqlalchemy as sa
from fleet.workers import eventually
from harness.arrange import LEASE_S, RENEWAL_S
from harness.kept_checkpoints import files_below
from harness.supervised_slot import ScriptedChild, Supervised, wire

from studydb.artifacts import DirectoryStore, Place
from studydb.artifacts.checkpoint_records import Upload
from studydb.child.messages import FlushAsked, UploadAsked
from studydb.db.schema import trial, upload
from studydb.lease.upload_collector import collect_uploads
from studydb.operations.recover import recover

PATIENCE_S = 10.0


class Zombie(ScriptedChild):
    """A child that asks for an upload, writes the object after the lease is lost, and flushes."""

    def __init__(self, supervised, store, clock, *, changed=None):
        self._supervised, self._store, self._clock = supervised, store, clock
        self._changed = changed
        super().__init__(b"")

    def _send_script(self):
        database, study = self._supervised.database, self._supervised.study
        self._theirs.settimeout(PATIENCE_S)
        (row,) = eventually(lambda: rows(database, trial))
        place = Place(study.uuid, row.uuid, 1, 1, str(uuid4()))
        url = self._changed or "/".join((self._store.url, *place.parts))
        self._theirs.sendall(wire(UploadAsked(1, Upload(place.checkpoint_uuid, url))))
        assert self._theirs.recv(1 << 16)
        self._lose()
        self._store.put_bytes(place, b"too late")
        self._script = wire(FlushAsked(2))
        super()._send_script()

    def _lose(self):
        """Recover the trial and collect the trial's uploads, as another worker would."""
        database, study = self._supervised.database, self._supervised.study
        for _ in range(2):
            self._clock.advance(LEASE_S + RENEWAL_S)
            recover(database, study)
        assert collect_uploads(database, study) == 0


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def supervised(database, clock, store, tmp_path):
    slot = Supervised(database, tmp_path, checkpoints=store.url, num_trials=1)
    yield slot
    slot.close()


def rows(database, table):
    with database.begin(write=False) as txn:
        return txn.all(sa.select(table))


def test_bytes_that_a_lost_attempt_has_written_are_deleted(supervised, store, clock):
    supervised.run(Zombie(supervised, store, clock), trials=1)

    assert files_below(store.root) == []
    assert rows(supervised.database, upload) == []


def test_object_of_another_trial_that_a_child_names_is_not_deleted(supervised, store, clock):
    other = Place(*(str(uuid4()) for _ in range(2)), 1, 1, str(uuid4()))
    store.add_study(other.study_uuid)
    kept = store.put_bytes(other, b"of another trial")

    supervised.run(Zombie(supervised, store, clock, changed=kept.url), trials=1)

    assert store.exists(kept.url)
