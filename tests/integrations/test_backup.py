"""
Attempts and leases in a database that was restored from a backup.

An attempt that began after the backup and an attempt that begins after the restore may have the
same number, but not the same token.
"""

import sqlite3
import uuid
from contextlib import closing

import pytest
from harness import arrange, postgres

from studydb.db import connect
from studydb.domain.errors import LeaseLost
from studydb.operations.report import report

pytestmark = pytest.mark.each_database


@pytest.fixture
def copy_database(database, storage_url, request):
    """Copy the database as it is now, and connect to the copy."""
    copies = []

    def copy():
        if not database.postgresql:
            url = storage_url.replace("studydb.db", "copy.db")
            with (
                closing(sqlite3.connect(database.path)) as source,
                closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as target,
            ):
                source.backup(target)
        else:
            database.close()  # PostgreSQL copies a database only while nobody is connected to it
            server = request.getfixturevalue("postgres_server")
            name = f"studydb_copy_{uuid.uuid4().hex}"
            template = postgres.database_in(storage_url)
            url = postgres.create_database(server, name, template=template)
            request.addfinalizer(lambda: postgres.drop_database(server, name))
        copies.append(connect(url))
        return copies[-1]

    yield copy
    for copied in copies:
        copied.close()


def test_attempt_claimed_after_the_backup_changes_nothing_in_the_restored_database(
    database, copy_database
):
    study = arrange.new_study(database)
    arrange.enqueued(database, study)
    restored = copy_database()
    stale = arrange.SimulatedWorker(database, study).take()
    stale.report(0.5)

    other = arrange.SimulatedWorker(restored, study).take()
    other.report(0.25)
    before = arrange.dump(restored)
    with pytest.raises(LeaseLost):
        report(restored, study, lease=stale.lease, batch=stale.batch(0.125))

    leases = (other.lease, stale.lease)
    assert len({(lease.trial_id, lease.attempt) for lease in leases}) == 1
    assert arrange.dump(restored) == before


def test_attempt_continues_in_the_restored_database_without_the_step_reported_after_the_backup(
    database, copy_database
):
    study = arrange.new_study(database)
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5)
    restored = copy_database()
    run.report(0.25)

    report(restored, study, lease=run.lease, batch=run.batch(0.125))

    assert [result.step for result in arrange.live_results(restored, study, 0)] == [1, 3]


def test_trial_running_at_the_backup_is_recovered_when_its_lease_expires(
    database, copy_database, clock
):
    study = arrange.new_study(database)
    arrange.SimulatedWorker(database, study).take()
    restored = copy_database()
    restored.clock = clock

    arrange.recover_after_expiry(clock, restored, study)

    assert arrange.states_of(restored, study) == ["PENDING"]
