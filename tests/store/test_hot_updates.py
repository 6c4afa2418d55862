"""
Properties of the schema that make statements cheaper on PostgreSQL.

Updated rows stay on their page (HOT): no index of `trial` has a column that a report, a renewal or
a save changes, and the pages of tables with frequent updates have free room. Each table has at most
one CHECK, because each statement parses the table's CHECKs. `study.points`, which only workers of
an older version use, is not compressed.
"""

import time

import pytest
from harness.arrange import SimulatedWorker, change, new_study, rows

from studydb.db.metadata import METADATA

PATIENCE_S = 10

CHANGED_BY_REPORTS_AND_RENEWALS = {
    *("lease_expires_at", "suspect_at", "flush_no", "n_results", "last_step", "last_value"),
    *("best_value", "best_step", "best_score", "time_total_s", "request", "verdict", "token"),
    *("checkpoint_id", "checkpoint_step", "losses"),
}


@pytest.fixture
def database(postgres_url, opened):
    return opened(postgres_url, connections=1)


def updates(database, at_least=0):
    """
    Read how many updates the table `trial` had, and how many of the updates were HOT.

    PostgreSQL shows a session's updates with a delay: wait until it shows `at_least` updates.
    """
    deadline = time.monotonic() + PATIENCE_S
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'trial'"
    while True:
        change(database, "SELECT pg_stat_force_next_flush()")
        ((n_updates, n_hot),) = rows(database, query)
        if n_updates >= at_least:
            return n_updates, n_hot
        assert time.monotonic() < deadline, n_updates


def test_updates_by_reports_renewals_and_saves_are_hot(database):
    """
    A few of the 90 updates may not be HOT: a snapshot of another session, such as an autovacuum's,
    keeps old row versions. Then the page is full after about 20 updates, and the next update moves
    the row to another page.
    """
    run = SimulatedWorker(database, new_study(database)).ask()
    before, hot_before = updates(database)

    for _ in range(30):
        run.report(0.5)
        run.worker.renew(run)
        run.save()

    n_updates, n_hot = updates(database, at_least=before + 90)
    assert n_updates - before == 90
    assert n_hot - hot_before > 80  # at most 60 if one operation changed an indexed column


def test_updates_by_reports_are_not_hot_with_an_index_on_the_lease(database):
    run = SimulatedWorker(database, new_study(database)).ask()
    change(database, "CREATE INDEX lease ON trial (lease_expires_at)")
    before, hot_before = updates(database)

    for _ in range(20):
        run.report(0.5)

    assert updates(database, at_least=before + 20)[1] == hot_before


def test_no_index_of_trial_has_a_column_that_reports_renewals_or_saves_change():
    trial = METADATA.tables["trial"]
    indexed = {column.name for index in trial.indexes for column in index.columns}

    assert indexed.isdisjoint(CHANGED_BY_REPORTS_AND_RENEWALS)
    assert set(trial.c.keys()) >= CHANGED_BY_REPORTS_AND_RENEWALS


def test_tables_with_hot_updates_leave_room_on_their_pages(database):
    found = dict(
        rows(database, "SELECT relname, reloptions::text FROM pg_class WHERE relkind = 'r'")
    )

    for table in ("trial", "attempt", "study", "counter", "rung", "worker"):
        assert "fillfactor" in found[table]
        assert "autovacuum" in found[table]


def test_each_table_has_at_most_one_check(database):
    found = rows(
        database,
        "SELECT conrelid::regclass::text, count(*) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid <> 0 GROUP BY 1 ORDER BY 1",
    )

    assert dict(found) == dict.fromkeys(
        [
            *("attempt", "checkpoint", "proposal", "study", "trainable", "trial", "upload"),
            "worker",
        ],
        1,
    )


def test_points_of_a_study_are_not_compressed(database):
    stored = rows(
        database,
        "SELECT attstorage FROM pg_attribute"
        " WHERE attrelid = 'study'::regclass AND attname = 'points'",
    )

    assert stored == [("e",)]
