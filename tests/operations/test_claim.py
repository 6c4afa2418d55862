"""Claims: races, duplicate requests, configs, tags, the order of the queue, and idle polling."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from threading import Event
from unittest.mock import Mock

import pytest
from harness import postgres
from harness.arrange import (
    LEASE_S,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    rows,
    token,
)
from harness.concurrent import PATIENCE_S, held_at, is_waiting_for_a_lock, send_twice
from harness.duplicate_requests import claiming

from studydb import store
from studydb.db import connect
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import UnknownStudy
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import QueuePosition
from studydb.domain.space.search_space import Space, uniform
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.annotate import tag
from studydb.operations.ask import ask
from studydb.operations.claim import claim, find_earlier_send
from studydb.operations.control import extend
from studydb.operations.delete import delete, stop_for_deletion
from studydb.operations.enqueue import enqueue
from studydb.store import attempts, counters, proposals, studies

# --- races


def test_two_claims_at_the_same_moment_take_different_trials(connections):
    slow, other = connections
    study = new_study(slow)
    for _ in range(2):
        enqueued(slow, study)
    first, second = SimulatedWorker(slow, study), SimulatedWorker(other, study)
    first_token, second_token = tokens_of_two_shards()

    with held_at(TransactionBlock, "_end") as (there, go), ThreadPoolExecutor(1) as pool:
        future = pool.submit(first.claim, first_token)
        assert there.wait(PATIENCE_S)
        passed = second.claim(second_token)
        go.set()
        assert future.result(PATIENCE_S).lease.number == 0

    assert passed.lease.number == 1


def tokens_of_two_shards():
    """Two tokens whose claims lock different counter shards, so neither waits for the other."""
    by_shard = {}
    while len(by_shard) < 2:
        new = token()
        by_shard[counters.binds(key=new, out_of=None, into=None)["shard_no"]] = new
    return by_shard.values()


def test_eight_threads_claim_each_trial_once(postgres_url):
    wide = connect(postgres_url, connections=8)
    study = new_study(wide, num_trials=40)
    for _ in range(40):
        enqueued(wide, study)

    def claim_all(worker):
        claimed = []
        while run := worker.claim():
            claimed.append(run.lease.number)
            run.finish(outcome=Reason.COMPLETED)
        return claimed

    with ThreadPoolExecutor(8) as pool:
        workers = [SimulatedWorker(wide, study) for _ in range(8)]
        claimed = [number for share in pool.map(claim_all, workers) for number in share]
    wide.close()

    assert sorted(claimed) == list(range(40))


# --- duplicates of a claim


@pytest.mark.parametrize("max_concurrent", [None, 9])
@pytest.mark.parametrize("waiting", [1, 5])
def test_duplicate_claims_take_one_trial(connections, postgres_url, waiting, max_concurrent):
    slow, fresh = connections
    call = claiming(slow, waiting=waiting, max_concurrent=max_concurrent)

    first, second, _ = send_twice(call, slow, fresh, postgres_url)

    assert first == second is not None
    assert rows(fresh, "SELECT count(*) FROM trial WHERE state = 'RUNNING'") == [(1,)]


@pytest.mark.parametrize("no_queue_until_s", [0.0, inf])
def test_duplicate_claim_finds_the_trial_of_an_ask_that_is_committing(
    connections, postgres_url, no_queue_until_s
):
    slow, fresh = connections
    call = asking_then_claiming(slow)
    slow.no_queue_until_s = no_queue_until_s

    first, second, waited = send_twice(call, slow, fresh, postgres_url)

    assert waited
    assert first == second is not None


def test_duplicate_claim_during_the_deletion_of_its_study_says_that_the_study_was_deleted(
    connections,
):
    slow, fresh = connections
    study = new_study(slow)
    enqueued(slow, study)
    worker = SimulatedWorker(slow, study)
    claimant = worker.claimant()
    run = worker.claim(claimant.token)

    with held_at(store.claims, "leased") as (there, go), ThreadPoolExecutor(1) as pool:
        again = pool.submit(find_earlier_send, slow, study, claimant)
        assert there.wait(PATIENCE_S)
        run.finish()
        delete(fresh, study)
        go.set()

        with pytest.raises(UnknownStudy, match="The study was deleted meanwhile"):
            again.result(PATIENCE_S)


@pytest.mark.parametrize("guard", ["await_claims", "lock"])
def test_duplicate_claim_finds_nothing_if_the_guard_that_makes_it_wait_is_removed(
    connections, postgres_url, monkeypatch, guard
):
    slow, fresh = connections
    arranged, module = {
        "await_claims": (partial(claiming, waiting=1), store.claims),
        "lock": (asking_then_claiming, studies),
    }[guard]
    call = arranged(slow)
    slow.no_queue_until_s = inf  # else the claim waits in the queue of asks even without the guard

    monkeypatch.setattr(module, guard, lambda *_, **__: None)

    _, second, waited = send_twice(call, slow, fresh, postgres_url)
    assert second is None
    assert not waited


def asking_then_claiming(database):
    """Return a function that sends an ask when first called, then a claim with the same token."""
    study = new_study(database, num_trials=2)
    SimulatedWorker(database, study).ask()  # stores the proposals of the next draws
    claimant, sends = SimulatedWorker(database, study).claimant(), iter([ask, claim])
    return lambda over: next(sends)(over, study, claimant)


def test_duplicate_claim_waits_for_an_ask_that_is_in_the_queue_of_asks(connections, postgres_url):
    slow, fresh = connections
    call = asking_then_claiming(slow)

    rival = postgres.connect(postgres_url)
    with rival, ThreadPoolExecutor(2) as pool, rival.transaction():
        rival.execute("SELECT pg_advisory_xact_lock(%s, id::int) FROM study", [proposals._QUEUE])
        earlier = pool.submit(call, slow)
        assert is_waiting_for_a_lock(postgres_url)
        resend, answered = send_again(pool, call, fresh)
        assert is_waiting_for_a_lock(postgres_url, unless=answered, waiters=2)

    assert earlier.result() == resend.result() is not None


def test_duplicate_claim_takes_the_trial_if_the_earlier_send_rolls_back(connections, postgres_url):
    _, fresh = connections
    call = claiming(fresh, waiting=1)

    earlier = postgres.connect(postgres_url)
    with earlier, ThreadPoolExecutor(1) as pool:
        with earlier.transaction(force_rollback=True):
            earlier.execute("SELECT FROM trial FOR NO KEY UPDATE")
            resend, answered = send_again(pool, call, fresh)
            assert is_waiting_for_a_lock(postgres_url, unless=answered)

        assert resend.result() is not None


def test_duplicate_claim_waits_for_an_earlier_send_if_the_study_was_paused_meanwhile(
    connections, postgres_url
):
    slow, fresh = connections
    study = new_study(slow)
    enqueued(slow, study)
    claimant = SimulatedWorker(slow, study).claimant()

    with held_at(TransactionBlock, "_end") as (there, go), ThreadPoolExecutor(2) as pool:
        earlier = pool.submit(claim, slow, study, claimant)
        assert there.wait(PATIENCE_S)
        control.set_status(fresh, study, Status.PAUSED, new_request())
        resend, answered = send_again(pool, lambda over: claim(over, study, claimant), fresh)
        assert is_waiting_for_a_lock(postgres_url, unless=answered)
        go.set()

        assert resend.result(PATIENCE_S) == earlier.result(PATIENCE_S) is not None


def send_again(pool, call, database):
    """Make the call in another thread; return its future, and an event that is set at its end."""
    answered = Event()
    future = pool.submit(call, database)
    future.add_done_callback(lambda _: answered.set())
    return future, answered


# --- studies that are stopped meanwhile


@pytest.mark.parametrize("max_concurrent", [None, 9])
def test_no_claim_starts_a_trial_while_the_deletion_of_its_study_begins(
    connections, postgres_url, max_concurrent
):
    slow, fresh = connections
    study = new_study(slow, max_concurrent=max_concurrent)
    enqueued(slow, study)
    claimant = SimulatedWorker(fresh, study).claimant()

    with held_at(TransactionBlock, "_end") as (there, go), ThreadPoolExecutor(2) as pool:
        stopped = pool.submit(stop_for_deletion, slow, study)
        assert there.wait(PATIENCE_S)
        first = pool.submit(claim, fresh, study, claimant, again=False)
        with suppress(TimeoutError):
            first.result(0.2)  # the claim skips the locked trial, or waits for the study's row
        go.set()
        stopped.result(PATIENCE_S)

        assert first.result(PATIENCE_S) is None


def test_claim_that_waited_for_the_study_starts_no_trial_if_the_study_was_stopped(
    connections, postgres_url
):
    slow, fresh = connections
    study = new_study(slow, max_concurrent=9)
    enqueued(slow, study)
    claimant = SimulatedWorker(fresh, study).claimant()

    with held_at(TransactionBlock, "_end") as (there, go), ThreadPoolExecutor(2) as pool:
        stopped = pool.submit(control.set_status, slow, study, Status.STOPPED, new_request())
        assert there.wait(PATIENCE_S)
        waiting, answered = send_again(
            pool, lambda over: claim(over, study, claimant, again=False), fresh
        )
        assert is_waiting_for_a_lock(postgres_url, unless=answered)
        go.set()
        stopped.result(PATIENCE_S)

        assert waiting.result(PATIENCE_S) is None


# --- configs


def nested_study(database):
    space = Space.read({"model": {"lr": uniform(0.0, 1.0), "kind": "mlp"}})
    return new_study(database, space=space, max_concurrent=9)


def test_claim_computes_the_config_of_a_trial_that_an_earlier_studydb_stored_without_one(database):
    study = nested_study(database)
    worker = SimulatedWorker(database, study)
    numbers = [enqueued(database, study, **{"model/lr": lr}) for lr in (0.25, 0.5)]
    change(database, "UPDATE trial SET config = NULL")

    claimed = [worker.claim() for _ in numbers]

    assert [run.lease.number for run in claimed] == numbers
    assert [run.claimed.config["model"] for run in claimed] == [
        {"lr": 0.25, "kind": "mlp"},
        {"lr": 0.5, "kind": "mlp"},
    ]
    with database.begin(write=False) as txn:
        for run in claimed:
            stored = attempts.find(txn, trial_id=run.lease.trial_id, attempt_no=1)
            assert stored.config == run.claimed.config
    assert worker.claim() is None
    assert rows(database, "SELECT n_running FROM study") == [(2,)]


@pytest.mark.row("B3")
def test_later_attempt_receives_the_changed_config_of_its_trial(database):
    study = nested_study(database)
    worker = SimulatedWorker(database, study)
    enqueued(database, study, **{"model/lr": 0.25})
    worker.claim().finish(outcome=Reason.PREEMPTED)
    change(database, """UPDATE trial SET config = '{"model": {"lr": 0.75, "kind": "mlp"}}'""")

    token_ = token()
    run = worker.claim(token_)

    assert run.claimed.params == {"model": {"lr": 0.25}}
    assert run.claimed.config == {"model": {"lr": 0.75, "kind": "mlp"}}
    assert run.claimed.misfit is None
    assert worker.claim(token_).claimed == run.claimed


# --- the order of the queue


def claimed_after(database, study, number):
    claimant = SimulatedWorker(database, study).claimant()
    found = claim(database, study, claimant, again=False, after_position=QueuePosition(0, number))
    return found and found.lease.number


def test_claim_scans_the_queue_after_the_given_position_and_then_from_the_start(database, study):
    for _ in range(3):
        enqueued(database, study)

    numbers = [claimed_after(database, study, 1) for _ in range(4)]

    assert numbers == [2, 0, 1, None]


def test_claim_and_duplicate_claim_return_the_current_tags_of_the_trial(database):
    study = new_study(database, num_trials=3)
    for name in ("plain", "given", "added later"):
        tags = ["a"] if name == "given" else []
        enqueue(database, study, {}, new_request(), name=name, tags=tags)
    tag(database, study, [1, 2], new_request(), add=["z", "b"])
    tag(database, study, [1], new_request(), remove=["z"])
    worker = SimulatedWorker(database, study)

    tokens = [token() for _ in range(3)]
    claimed = [worker.claim(one).claimed for one in tokens]

    assert [one.tags for one in claimed] == [(), ("a", "b"), ("b", "z")]
    assert [worker.claim(one).claimed for one in tokens] == claimed


def test_idle_worker_polls_without_writing(database):
    study = new_study(database, num_trials=0)
    worker = SimulatedWorker(database, study)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    assert acquirer.acquire() is None
    seen = []
    database.observer = seen.append

    assert acquirer.acquire() is None
    assert not [sql for sql in seen if "UPDATE" in sql or "INSERT" in sql]

    extend(database, study, new_request(), n_more=1)
    assert acquirer.acquire() is not None


def test_released_trial_is_found_by_the_next_scan_from_the_start_of_the_queue(
    database, study, worker
):
    for _ in range(5):
        enqueued(database, study)
    clock_s = Mock(return_value=0.0)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S, clock_s=clock_s)
    first = worker.claim()

    numbers = []
    for now_s in (0.0, 1.9, 2.1, 2.2):  # every 2 s a claim scans the queue from its start
        clock_s.return_value = now_s
        numbers.append(acquirer.acquire().lease.number)
        if now_s == 0.0:
            first.finish(outcome=Reason.PREEMPTED)  # trial 0 is the first of the queue again

    assert numbers == [1, 2, 0, 3]
