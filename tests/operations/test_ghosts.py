"""A call is sent again while the COMMIT of its first send is on its way: PostgreSQL, two connections."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Event

import pytest
from harness import postgres
from harness.arrange import LEASE_S, SimulatedWorker, dump, new_study, rows, token
from harness.concurrent import is_waiting_for_a_lock, send_twice
from harness.duplicate_requests import (
    FINISHES,
    OPERATIONS,
    claiming,
    claiming_or_asking,
    draining,
    leaving,
    pausing_the_study,
    renaming,
    resuming_the_study,
    summing_up,
)

from studydb.db import connect
from studydb.domain.space.search_space import Space, uniform
from studydb.operations import claim as claims
from studydb.operations.ask import ask
from studydb.operations.claim import claim
from studydb.store import leases, proposals, studies

BLIND = (
    leaving,
    pausing_the_study,
    resuming_the_study,
    renaming,
    draining,
    summing_up,
    claiming_or_asking,
)
"""
They have locked nothing where they are held, so the resend overtakes its earlier send: most read
nothing, one is held while it reads the results, and the last at the end of a claim of nothing.
"""

NESTED = Space.read({"model": {"lr": uniform(0.0, 1.0)}})
"""Its asks go in steps."""

AT_BEGIN = (claims, "begin_attempt")
"""Of a claim in several statements: what it sends from there on has not arrived yet."""


@pytest.fixture
def connections(postgres_url):
    """The ghost's connection, and the one on which the call is sent again."""
    ghostly = connect(f"{postgres_url}&pooler=transaction")  # what is one statement has a COMMIT
    fresh = connect(postgres_url)
    ghostly.clock = fresh.clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    yield ghostly, fresh
    ghostly.close()
    fresh.close()


def test_resend_and_its_ghost_count_once(connections, postgres_url, subtests):
    ghostly, fresh = connections

    for arranged in OPERATIONS:
        call = arranged(ghostly)

        first, second, waited = send_twice(call, ghostly, fresh, postgres_url)
        after = dump(fresh)
        third = call(fresh)

        with subtests.test(arranged.__name__):
            assert waited or arranged in BLIND
            assert dump(fresh) == after
            assert third is None if arranged in FINISHES else first == second == third


@pytest.mark.parametrize("at", [None, AT_BEGIN], ids=["commit", "all the rest"])
@pytest.mark.parametrize("waiting", [1, 5])
def test_worker_never_owns_two_trials_by_one_token(connections, postgres_url, waiting, at):
    ghostly, fresh = connections
    call = claiming(ghostly, waiting=waiting, max_concurrent=9 if at else None)

    first, second, _ = send_twice(call, ghostly, fresh, postgres_url, at=at)

    assert first == second is not None
    assert rows(fresh, "SELECT count(*) FROM trial WHERE state = 'RUNNING'") == [(1,)]


@pytest.mark.parametrize("overrides", [{}, {"space": NESTED}], ids=["at once", "in steps"])
def test_claim_finds_the_ask_that_is_on_its_way(connections, postgres_url, overrides):
    ghostly, fresh = connections
    call = asking_then_claiming(ghostly, **overrides)

    first, second, waited = send_twice(call, ghostly, fresh, postgres_url)

    assert waited
    assert first == second is not None


@pytest.mark.parametrize("guard", ["await_claims", "lock"])
def test_claim_that_does_not_wait_misses_its_ghost(connections, postgres_url, monkeypatch, guard):
    ghostly, fresh = connections
    arranged, at, room = {
        "await_claims": (partial(claiming, waiting=1, max_concurrent=9), AT_BEGIN, leases),
        "lock": (partial(asking_then_claiming, space=NESTED), None, studies),
    }[guard]
    call = arranged(ghostly)

    monkeypatch.setattr(room, guard, lambda *_, **__: None)

    _, second, waited = send_twice(call, ghostly, fresh, postgres_url, at=at)
    assert second is None
    assert not waited


def asking_then_claiming(database, **overrides):
    """The first send is an ask that takes the last of the budget; the second begins with a claim."""
    study = new_study(database, num_trials=2, **overrides)
    SimulatedWorker(database, study).ask()  # the points of the next ones are there
    worker, sends, once = SimulatedWorker(database, study), iter([ask, claim]), token()
    return lambda over: next(sends)(over, study, worker_id=worker.id, token=once, lease_s=LEASE_S)


def test_claim_waits_for_an_ask_that_queues(connections, postgres_url):
    ghostly, fresh = connections
    call, answered = asking_then_claiming(ghostly), Event()

    def send_again():
        try:
            return call(fresh)
        finally:
            answered.set()

    rival = postgres.connect(postgres_url)
    with rival, ThreadPoolExecutor(2) as pool, rival.transaction():
        rival.execute("SELECT pg_advisory_xact_lock(%s, id::int) FROM study", [proposals._QUEUE])
        ghost = pool.submit(call, ghostly)
        assert is_waiting_for_a_lock(postgres_url)
        resend = pool.submit(send_again)
        assert is_waiting_for_a_lock(postgres_url, unless=answered, waiters=2)

    assert ghost.result() == resend.result() is not None


def test_claim_takes_what_its_ghost_gives_up(connections, postgres_url):
    _, fresh = connections
    call, answered = claiming(fresh, waiting=1), Event()

    def send_again():
        try:
            return call(fresh)
        finally:
            answered.set()

    ghost = postgres.connect(postgres_url)
    with ghost, ThreadPoolExecutor(1) as pool:
        with ghost.transaction(force_rollback=True):
            ghost.execute("SELECT FROM trial FOR NO KEY UPDATE")
            resend = pool.submit(send_again)
            assert is_waiting_for_a_lock(postgres_url, unless=answered)

        assert resend.result() is not None
