"""
All times come from the database's clock, which a test can replace.

The last test is about `is_listed`, an expression without a time.
"""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from harness.arrange import SimulatedWorker, new_study

from studydb.db.dialect import after, is_listed, now
from studydb.db.schema import trial
from studydb.db.types import UtcDateTime

MOMENT = datetime(2026, 2, 28, 23, 59, 59, 500000, tzinfo=UTC)


def read(database, expression, **params):
    with database.begin(write=False) as txn:
        return txn.all(sa.select(expression.label("found")), **params)[0].found


@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.5, 20.0, 90.0, 1e-3, 86400.0, 3e7])
def test_sql_expression_of_a_later_time_adds_seconds(database, seconds):
    moment = sa.literal(MOMENT, UtcDateTime())

    found = read(database, after(moment, sa.literal(seconds, sa.Double)))

    assert found == MOMENT + timedelta(seconds=seconds)


def test_statements_and_transactions_use_the_injected_clock(database, clock):
    with database.begin(write=False) as txn:
        assert txn.now == clock.now
    assert read(database, now()) == clock.now
    SimulatedWorker(database, new_study(database)).ask()
    with database.begin(write=False) as txn:
        assert txn.all(sa.select(trial.c.started_at))[0].started_at == clock.now


def test_clock_of_postgresql_has_a_time_zone_and_moves_within_a_transaction(postgres_url, opened):
    with opened(postgres_url).begin(write=False) as txn:
        first, second = (txn.all(sa.select(now().label("at")))[0].at for _ in range(2))

    assert first < second
    assert abs(datetime.now(UTC) - first) < timedelta(minutes=1)


def test_ask_on_postgresql_does_not_read_the_clock_of_the_host(postgres_url, opened, monkeypatch):
    database = opened(postgres_url)
    study = new_study(database)
    monkeypatch.setattr("studydb.db.transaction.datetime", None)

    assert SimulatedWorker(database, study).ask() is not None


@pytest.mark.parametrize("wanted", [[], [1], [1, 2, 2, 7]])
def test_rows_with_listed_ids_are_found(database, wanted):
    worker = SimulatedWorker(database, new_study(database))
    for _ in range(3):
        worker.ask()

    with database.begin(write=False) as txn:
        found = txn.all(sa.select(trial.c.id).where(is_listed(trial.c.id, "ids")), ids=wanted)

    assert {row.id for row in found} == {1, 2, 3} & set(wanted)
