"""A PostgreSQL role that may only connect can delay operations by a lock, but not block them."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import monotonic

import psycopg
import pytest
from harness import postgres
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_study,
    retry_while_busy,
    rows,
    run_together,
)
from harness.concurrent import PATIENCE_S, send_twice

from studydb.analysis.wide import make_wide_views
from studydb.db import connect, migrate, revisions
from studydb.operations.ask import ask
from studydb.operations.claim import claim
from studydb.store import proposals

THREADS = 8
MIGRATION = f"SELECT pg_advisory_lock({revisions.ADVISORY_LOCK})"


@pytest.fixture
def database(postgres_url):
    database = connect(postgres_url, connections=THREADS + 1)
    yield database
    database.close()


@pytest.fixture
def stranger(postgres_url):
    """The URL of a role that may only connect."""
    role = f"stranger_{uuid.uuid4().hex[:8]}"
    with postgres.connect(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
    yield postgres_url.replace("postgres@", f"{role}@")
    with postgres.connect(postgres_url) as connection:
        connection.execute(f"DROP ROLE {role}")


@contextmanager
def held(stranger, lock):
    with postgres.connect(stranger) as rival:
        rival.execute(lock)
        yield


def queue_of(study):
    return f"SELECT pg_advisory_lock({proposals._QUEUE}, {study.id})"


@pytest.mark.slow
def test_asks_skip_the_queue_of_asks_after_one_ask_has_timed_out_in_it(database, stranger):
    study = new_study(database, num_trials=20)
    worker = SimulatedWorker(database, study)

    with held(stranger, queue_of(study)):
        begun_s = monotonic()
        first = worker.ask().lease.number
        waited_s, begun_s = monotonic() - begun_s, monotonic()
        rest = [worker.ask().lease.number for _ in range(19)]

    assert [first, *rest] == list(range(20))
    assert proposals.ADVISORY_LOCK_TIMEOUT_S <= waited_s < 4 * proposals.ADVISORY_LOCK_TIMEOUT_S
    assert monotonic() - begun_s < proposals.ADVISORY_LOCK_TIMEOUT_S  # later asks skip the queue


def test_claim_that_finds_a_trial_does_not_wait_in_the_queue_of_asks(
    database, study, worker, stranger
):
    enqueued(database, study)

    with held(stranger, queue_of(study)):
        begun_s = monotonic()
        assert worker.claim() is not None

    assert monotonic() - begun_s < proposals.ADVISORY_LOCK_TIMEOUT_S


@pytest.mark.slow
@pytest.mark.parametrize("max_concurrent", [None, 5])
def test_budgets_are_exact_while_asks_skip_the_queue_of_asks(database, stranger, max_concurrent):
    study = new_study(database, num_trials=20, max_concurrent=max_concurrent)

    def drain():
        worker = SimulatedWorker(database, study)
        while retry_while_busy(worker.ask) is not None:
            pass

    with held(stranger, queue_of(study)):
        run_together([drain] * THREADS)

    made = max_concurrent or 20
    assert rows(database, "SELECT count(*), count(DISTINCT draw), max(draw) FROM trial") == [
        (made, made, made - 1)
    ]


@pytest.mark.slow
def test_duplicate_claim_gets_the_trial_of_the_earlier_ask(database, postgres_url, stranger):
    study = new_study(database, num_trials=2)
    SimulatedWorker(database, study).ask()  # stores the proposals of the next draws
    claimant, sends = SimulatedWorker(database, study).claimant(), iter([ask, claim])
    # With `pooler=transaction`, COMMIT is sent separately, so that `send_twice` can delay it.
    earlier = connect(f"{postgres_url}&pooler=transaction")

    def call(over):
        return next(sends)(over, study, claimant)

    with held(stranger, queue_of(study)):
        first, second, waited = send_twice(call, earlier, database, postgres_url)
    earlier.close()

    assert waited
    assert first == second is not None
    assert rows(database, "SELECT count(*) FROM trial") == [(2,)]


@pytest.mark.slow
def test_concurrent_duplicate_asks_make_one_trial(database, postgres_url, stranger):
    study = new_study(database, num_trials=9)
    claimant = SimulatedWorker(database, study).claimant()
    earlier = connect(postgres_url)

    with held(stranger, queue_of(study)):
        first, second = run_together(
            partial(ask, over, study, claimant) for over in (earlier, database)
        )
    earlier.close()

    assert first == second is not None
    assert rows(database, "SELECT count(*) FROM trial") == [(1,)]


@pytest.mark.slow
def test_resent_claim_that_finds_no_trial_waits_in_the_queue_of_asks_but_not_forever(
    database, study, worker, stranger
):
    with held(stranger, queue_of(study)):
        begun_s = monotonic()
        assert claim(database, study, worker.claimant()) is None

    assert proposals.RESEND_TIMEOUT_S <= monotonic() - begun_s < 3 * proposals.RESEND_TIMEOUT_S


def test_upgrade_succeeds_while_a_stranger_holds_the_advisory_lock_of_upgrades(
    empty_postgres_url, postgres_url, stranger, monkeypatch
):
    monkeypatch.setattr(migrate, "ADVISORY_LOCK_TIMEOUT_S", 0.2)
    names = map(postgres.database_in, (postgres_url, empty_postgres_url))
    rival = stranger.replace(*names)

    with held(rival, MIGRATION):
        assert migrate.upgrade(empty_postgres_url) == ""

    assert migrate.current(empty_postgres_url) == revisions.HEAD


def test_upgrades_of_existing_tables_wait_for_each_other(postgres_url, stranger, monkeypatch):
    monkeypatch.setattr(migrate, "ADVISORY_LOCK_TIMEOUT_S", 0.2)
    migrate.downgrade(postgres_url, "0001")
    other = postgres.connect(postgres_url)

    with held(stranger, MIGRATION), ThreadPoolExecutor(1) as pool, other:
        with other.transaction():
            other.execute(f"LOCK TABLE {revisions.TABLE} IN SHARE ROW EXCLUSIVE MODE")
            upgrade = pool.submit(migrate.upgrade, postgres_url)
            deadline_s = monotonic() + PATIENCE_S
            while not (modes := awaited_modes(other)) and monotonic() < deadline_s:
                pass
        assert upgrade.result() == "0001"

    assert modes == [("ShareRowExclusiveLock",)]
    assert migrate.current(postgres_url) == revisions.HEAD


def awaited_modes(connection):
    """Read the modes of the table locks that other sessions wait for."""
    return connection.execute(
        "SELECT mode FROM pg_locks WHERE NOT granted AND locktype = 'relation' AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()


def test_wide_views_are_made_while_a_stranger_holds_the_lock_of_upgrades(database, stranger):
    study = new_study(database, name="digits")
    SimulatedWorker(database, study).ask().report(0.5)

    with held(stranger, MIGRATION):
        make_wide_views(database, study)

    assert rows(database, "SELECT loss FROM v_result_digits") == [(0.5,)]


def test_stranger_cannot_lock_the_version_table(postgres_url, stranger):
    with postgres.connect(stranger) as rival, pytest.raises(psycopg.errors.InsufficientPrivilege):
        rival.execute(f"BEGIN; LOCK TABLE {revisions.TABLE} IN SHARE ROW EXCLUSIVE MODE")
