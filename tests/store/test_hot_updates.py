"""
What makes every statement cheaper on PostgreSQL.

No index has a column that a report or a renewal changes, so that the row stays on its page. CHECKs
of a table are parsed in each statement, so that a table has one. The columns that every ask reads
are not compressed.
"""

import time

import pytest
from harness.arrange import SimulatedWorker, change, new_study, rows

from studydb.db import connect
from studydb.db.schema import METADATA

PATIENCE_S = 10

HOT = ("lease_expires_at", "suspect_at", "flush_no", "n_results", "last_step", "last_value")
HOT += ("best_value", "best_step", "best_score", "time_total_s", "request", "verdict", "token")
HOT += ("checkpoint_id", "checkpoint_step", "losses")


@pytest.fixture
def database(postgres_url):
    database = connect(postgres_url, connections=1)
    yield database
    database.close()


def updates(database, table):
    """Updates of a table, and how many were HOT; the server counts once a session is idle."""
    change(database, "SELECT pg_stat_force_next_flush()")
    return rows(
        database,
        f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{table}'",
    )[0]


def test_reports_and_renewals_are_hot(database):
    run = SimulatedWorker(database, new_study(database)).ask()
    before = updates(database, "trial")

    for _ in range(50):
        run.report(0.5)
        run.worker.renew(run)
    run.save()

    deadline = time.monotonic() + PATIENCE_S
    while (after := updates(database, "trial"))[0] < before[0] + 101:
        assert time.monotonic() < deadline, after
    assert after[1] - before[1] == after[0] - before[0] == 101


def test_reports_are_not_hot_with_an_index_on_the_lease(database):
    run = SimulatedWorker(database, new_study(database)).ask()
    change(database, "CREATE INDEX lease ON trial (lease_expires_at)")
    before = updates(database, "trial")

    for _ in range(20):
        run.report(0.5)

    deadline = time.monotonic() + PATIENCE_S
    while (after := updates(database, "trial"))[0] < before[0] + 20:
        assert time.monotonic() < deadline, after
    assert after[1] == before[1]


def test_no_index_has_a_column_that_reports_and_renewals_change():
    trial = METADATA.tables["trial"]
    indexed = {column.name for index in trial.indexes for column in index.columns}

    assert indexed.isdisjoint(HOT)
    assert set(HOT) <= set(trial.c.keys())


def test_hot_tables_leave_room_on_their_pages(database):
    found = dict(
        rows(database, "SELECT relname, reloptions::text FROM pg_class WHERE relkind = 'r'")
    )

    for table in ("trial", "attempt", "study", "counter", "rung", "worker"):
        assert "fillfactor" in found[table]
        assert "autovacuum" in found[table]


def test_each_table_has_one_check(database):
    found = rows(
        database,
        "SELECT conrelid::regclass::text, count(*) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid <> 0 GROUP BY 1 ORDER BY 1",
    )

    assert dict(found) == dict.fromkeys(
        ["attempt", "checkpoint", "study", "trainable", "trial", "worker"], 1
    )


def test_proposals_of_a_study_are_not_compressed(database):
    stored = rows(
        database,
        "SELECT attstorage FROM pg_attribute"
        " WHERE attrelid = 'study'::regclass AND attname = 'points'",
    )

    assert stored == [("e",)]
