"""
From the step of its first result on, an attempt supersedes the results of earlier attempts.

Superseded results do not count in the trial's summary. Entries in rungs keep their values.
"""

import random

import pytest
from harness.arrange import SimulatedWorker, live_results, new_study, recover_after_expiry, rows

from studydb.domain.life.states import Reason
from studydb.domain.metrics import Summary
from studydb.domain.records import Batch
from studydb.operations.claim import claim as claim_again
from studydb.schedulers import ASHA


@pytest.fixture
def study(database):
    return new_study(database, max_failures=-1)


def release(run):
    run.finish(outcome=Reason.PREEMPTED)


def first_attempt(worker, *, saved_step=None):
    """Make a trial, report 0.1 … 0.5 at steps 1 … 5, save at `saved_step` if given, and release."""
    run = worker.ask()
    run.report(0.1, 0.2, 0.3, 0.4, 0.5)
    if saved_step is not None:
        run.save(run.checkpoint(step=saved_step))
    release(run)


def live(worker):
    """Return live values by step; check that no step is repeated, and check the stored summary."""
    found = live_results(worker.database, worker.study, 0)
    assert len({result.step for result in found}) == len(found)
    expected = Summary().add(found, worker.study.objective)
    sql = "SELECT n_results, last_step, best_value, best_step FROM trial"
    assert rows(worker.database, sql) == [
        (expected.n_results, expected.last_step, expected.best_value, expected.best_step)
    ]
    return {result.step: result.value for result in found}


@pytest.mark.parametrize(
    ("saved_step", "report", "expected", "start_step"),
    [
        (3, lambda run: run.report(0.9), {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9}, 4),
        (3, lambda run: run.finish(0.9), {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9}, 4),
        (3, lambda run: run.report(0.9, first=1), {1: 0.9}, 1),
        (None, lambda run: run.report(0.9, 0.8), {1: 0.9, 2: 0.8}, 1),
        (None, lambda run: (run.report(0.9), run.report(0.8)), {1: 0.9, 2: 0.8}, 1),
    ],
    ids=["after a checkpoint", "last flush", "ignored checkpoint", "no checkpoint", "two flushes"],
)
def test_first_result_of_a_later_attempt_supersedes_results_of_its_step_and_of_later_steps(
    worker, saved_step, report, expected, start_step
):
    first_attempt(worker, saved_step=saved_step)

    run = worker.claim()
    report(run)

    assert (run.claimed.checkpoint and run.claimed.checkpoint.step) == saved_step
    assert live(worker) == expected
    starts = rows(worker.database, "SELECT start_step FROM attempt ORDER BY attempt")
    assert starts == [(1,), (start_step,)]


def test_attempts_that_end_before_their_first_flush_supersede_nothing(worker):
    first_attempt(worker, saved_step=3)
    for _ in range(2):
        release(worker.claim())
    before = live(worker)

    worker.claim().report(0.9)

    assert sorted(before) == [1, 2, 3, 4, 5]
    assert live(worker) == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9}


def test_attempt_supersedes_results_at_its_first_flush_that_has_results(worker):
    first_attempt(worker)

    run = worker.claim()
    run.report()
    before = live(worker)
    run.report(0.9)

    assert sorted(before) == [1, 2, 3, 4, 5]
    assert live(worker) == {1: 0.9}


def test_third_attempt_supersedes_results_of_both_earlier_attempts(worker):
    first_attempt(worker, saved_step=3)
    run = worker.claim()
    run.report(0.9, 0.8)
    release(run)

    worker.claim().report(0.7, first=2)

    assert live(worker) == {1: 0.1, 2: 0.7}


def test_results_of_a_lost_attempt_are_live_until_they_are_superseded(clock, worker):
    run = worker.ask()
    run.report(0.1, 0.2)
    recover_after_expiry(clock, worker.database, worker.study)

    assert live(worker) == {1: 0.1, 2: 0.2}
    worker.claim().report(0.9)
    assert live(worker) == {1: 0.9}


def test_results_of_other_trials_are_not_superseded(worker):
    first_attempt(worker)
    other = worker.claim()
    worker.ask().report(0.6, 0.7)

    other.report(0.9)

    assert [result.value for result in live_results(worker.database, worker.study, 1)] == [0.6, 0.7]


def test_later_attempt_does_not_change_the_value_of_a_rung_entry(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    worker = SimulatedWorker(database, study)
    run = worker.ask()
    run.report(0.1)
    run.report(0.2)
    release(run)

    again = worker.claim()
    answer = again.send(Batch(1, again.batch(0.9).results, 0))

    entries = "SELECT attempt, value, score, ordinal FROM rung_entry"
    assert answer.verdict is None
    assert answer.next_decision_step == 3
    assert rows(database, entries) == [(1, 0.1, 0.1, 0)]
    assert rows(database, "SELECT n_entries, cut_score FROM rung WHERE step = 1") == [(1, 0.1)]


@pytest.mark.parametrize("seed", range(3))
def test_live_results_equal_a_model_after_random_attempts(database, seed):
    rng = random.Random(seed)
    worker = SimulatedWorker(database, new_study(database))
    model, run = {}, worker.ask()

    for _ in range(12):
        first = rng.choice([run.after_step + 1, run.after_step + 1, 1, rng.randint(1, 9)])
        values = [rng.random() for _ in range(rng.randint(0, 4))]
        if values:
            model = {step: value for step, value in model.items() if step < first}
            model |= dict(enumerate(values, first))
        for place, value in enumerate(values):
            run.report(value, first=first + place)
        if rng.random() < 0.5:
            run.save()
        release(run)
        run = worker.claim()

    assert live(worker) == model


def test_claim_tells_how_long_earlier_attempts_have_trained(worker):
    first_attempt(worker)

    run = worker.claim()

    assert run.claimed.time_total_s == 2.5
    again = claim_again(worker.database, worker.study, worker.claimant(run.lease.token))
    assert again == run.claimed
