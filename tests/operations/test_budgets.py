"""
Concurrent callers keep to `num_trials` and `max_concurrent`; a grid gives each point once.

`extend` raises `num_trials`. A paused or stopped study gives no trials.
"""

import random
from contextlib import suppress

import pytest
from harness.arrange import (
    LEASE_S,
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    retry_while_busy,
    rows,
    run_together,
    states_of,
    unchanged_rows,
)

from studydb.db import connect
from studydb.domain.arguments import LARGEST
from studydb.domain.errors import BudgetSpent, LeaseLost, NotAllowed, UsageError
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.space.search_space import Space, choice
from studydb.operations import control
from studydb.operations.propose import proposal_of
from studydb.operations.reads import list_trials
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress
from studydb.searchers import GridSearch
from studydb.store import proposals

THREADS = 8
MOST_ASKS = 100

GRID = Space.read({"lr": choice([0.1, 0.2]), "width": choice([1, 2])})


@pytest.fixture
def many_connections(storage_url):
    """A database with a connection for every thread."""
    database = connect(storage_url, connections=THREADS + 1)
    yield database
    database.close()


def in_threads(work):
    return run_together([lambda seed=seed: work(random.Random(seed)) for seed in range(THREADS)])


def ask_until_none(worker):
    """Ask until an ask gives no trial, at most `MOST_ASKS` times; return the trials' numbers."""
    numbers = []
    while len(numbers) < MOST_ASKS and (run := retry_while_busy(worker.ask)):
        numbers.append(run.lease.number)
    return numbers


def test_concurrent_asks_make_exactly_num_trials(many_connections):
    study = new_study(many_connections, num_trials=20)

    asked = in_threads(lambda _: ask_until_none(SimulatedWorker(many_connections, study)))

    assert sorted(number for numbers in asked for number in numbers) == list(range(20))
    assert rows(
        many_connections, "SELECT count(*), count(DISTINCT draw), max(draw) FROM trial"
    ) == [(20, 20, 19)]


def test_concurrent_enqueues_and_asks_share_the_budget(many_connections):
    study = new_study(many_connections, num_trials=20)

    def enqueue_or_ask(rng):
        worker, made = SimulatedWorker(many_connections, study), 0
        for _ in range(6):
            try:
                if rng.random() < 0.5:
                    retry_while_busy(lambda: enqueued(many_connections, study))
                    made += 1
                else:
                    made += retry_while_busy(worker.ask) is not None
            except BudgetSpent:
                pass
        return made

    made = in_threads(enqueue_or_ask)

    assert sum(made) == len(list_trials(many_connections, study)) == 20


@pytest.mark.parametrize("acquire", ["claim", "ask"])
def test_concurrent_claims_or_asks_start_exactly_max_concurrent_trials(many_connections, acquire):
    study = new_study(many_connections, num_trials=50, max_concurrent=3)
    for _ in range(10):
        enqueued(many_connections, study)

    held = in_threads(
        lambda _: retry_while_busy(getattr(SimulatedWorker(many_connections, study), acquire))
    )

    assert len([run for run in held if run is not None]) == 3
    assert states_of(many_connections, study).count(State.RUNNING) == 3


def test_claim_and_ask_change_nothing_while_max_concurrent_trials_run(database):
    study = new_study(database, max_concurrent=1)
    enqueued(database, study)
    worker = SimulatedWorker(database, study)
    worker.ask()

    with unchanged_rows(database):
        assert worker.claim() is None
        assert worker.ask() is None


def test_max_concurrent_is_kept_through_claims_asks_ends_and_losses(many_connections):
    study = new_study(many_connections, num_trials=None, max_concurrent=3, max_failures=-1)
    counts = []

    def work(rng):
        worker = SimulatedWorker(many_connections, study, lease_s=0.001)
        while len(counts) < 100:
            run = retry_while_busy(worker.acquire)
            counts.append(states_of(many_connections, study).count(State.RUNNING))
            if run is None or rng.random() < 0.3:
                retry_while_busy(lambda: recover(many_connections, study))
                continue
            outcome = rng.choice([Reason.COMPLETED, Reason.FAILED, Reason.PREEMPTED])
            retry_while_busy(lambda run=run, outcome=outcome: end(run, outcome))

    in_threads(work)

    running = states_of(many_connections, study).count(State.RUNNING)
    assert 1 < max(counts) <= 3
    assert rows(many_connections, "SELECT n_running FROM study") == [(running,)]


def end(run, outcome):
    with suppress(LeaseLost):
        run.finish(outcome=outcome)


def test_trial_with_a_verdict_counts_as_running_until_its_attempt_ends(database):
    study = new_study(database, max_concurrent=1, rules=read_rules({"loss": 0.5}))
    worker = SimulatedWorker(database, study)
    run = worker.ask()
    run.report(0.9)

    assert worker.ask() is None
    run.finish()
    assert worker.ask() is not None


def test_enqueued_trials_use_no_points_of_the_grid(database):
    study = new_study(database, space=GRID, searcher=GridSearch(), num_trials=None)
    enqueued(database, study, lr=0.1)
    worker = SimulatedWorker(database, study)

    points = [worker.ask().claimed.params for _ in range(2)]
    enqueued(database, study, lr=0.2, width=2)
    points += [worker.ask().claimed.params for _ in range(2)]

    assert worker.ask() is None
    assert [tuple(point.values()) for point in points] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    assert len(list_trials(database, study)) == 6


def test_proposal_after_the_last_point_of_the_grid_is_not_used(database):
    study = new_study(database, space=GRID, searcher=GridSearch(), num_trials=None)
    worker = SimulatedWorker(database, study)
    assert all(worker.ask() for _ in range(4))
    with database.begin() as txn:
        proposals.store(txn, study_id=study.id, proposed={4: proposal_of(study, 0)})

    assert worker.ask() is None


def test_error_of_an_enqueue_past_num_trials_suggests_extend_and_nothing_changes(database):
    study = new_study(database, name="full", num_trials=1)
    enqueued(database, study)
    message = r"has its 1 trial already.*studydb extend full --trials"

    with unchanged_rows(database), pytest.raises(BudgetSpent, match=message):
        enqueued(database, study)


def test_extend_allows_more_trials(database):
    study = new_study(database, num_trials=1)
    worker = SimulatedWorker(database, study)
    worker.ask().finish()

    num_trials = control.extend(database, study, new_request(), n_more=2)

    assert num_trials == 3
    assert len(ask_until_none(worker)) == 2


def test_concurrent_extensions_are_all_counted(many_connections):
    study = new_study(many_connections, num_trials=1)

    def extend_by_two(_):
        request = new_request()
        retry_while_busy(lambda: control.extend(many_connections, study, request, n_more=2))

    in_threads(extend_by_two)

    assert rows(many_connections, "SELECT num_trials FROM study") == [(1 + 2 * THREADS,)]


def test_extend_refuses_a_study_without_num_trials_and_refuses_to_add_zero_trials(database):
    endless, study = new_study(database, num_trials=None), new_study(database)

    with unchanged_rows(database):
        with pytest.raises(NotAllowed, match="no number to raise"):
            control.extend(database, endless, new_request(), n_more=1)
        with pytest.raises(UsageError, match="by 1 trial or more, not by 0"):
            control.extend(database, study, new_request(), n_more=0)


def test_extend_refuses_a_sum_that_the_column_cannot_hold(database):
    study = new_study(database, num_trials=2)
    control.extend(database, study, new_request(), n_more=LARGEST - 2)

    with unchanged_rows(database), pytest.raises(UsageError, match="Add fewer"):
        control.extend(database, study, new_request(), n_more=1)


def test_duplicate_of_an_extension_to_the_largest_num_trials_returns_the_first_answer(database):
    study, request = new_study(database, num_trials=2), new_request()
    first = control.extend(database, study, request, n_more=LARGEST - 2)

    with unchanged_rows(database):
        again = control.extend(database, study, request, n_more=LARGEST - 2)

    assert (first, again) == (LARGEST, LARGEST)


@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
def test_paused_or_stopped_study_gives_no_trials(database, study, worker, status):
    enqueued(database, study)
    control.set_status(database, study, status, new_request())

    with unchanged_rows(database):
        assert worker.claim() is None
        assert worker.ask() is None
        assert not read_progress(database, study).can_claim


def test_progress_shows_when_the_study_is_finished(database):
    study = new_study(database, num_trials=2)
    number = enqueued(database, study)
    worker = SimulatedWorker(database, study)
    steps = [read_progress(database, study)]

    first, second = worker.claim(), worker.ask()
    steps.append(read_progress(database, study))
    first.finish()
    steps.append(read_progress(database, study))
    second.finish()
    steps.append(read_progress(database, study))

    assert first.lease.number == number
    for name in ("has_runnable", "has_budget", "can_claim"):
        assert [getattr(step, name) for step in steps] == [True, False, False, False]
    assert [step.is_done for step in steps] == [False, False, False, True]
    assert [step.status for step in steps] == [Status.RUNNING] * 3 + [Status.FINISHED]


def test_lease_lasts_as_long_as_its_worker_chose(database, study):
    run = SimulatedWorker(database, study, lease_s=LEASE_S / 2).ask()

    assert run.lease.lease_s == LEASE_S / 2
    assert rows(database, "SELECT lease_s FROM trial") == [(LEASE_S / 2,)]
