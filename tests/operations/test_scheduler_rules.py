"""Schedulers decide as a direct computation of ranks or medians does; explanations say why."""

import math
from random import Random

import numpy as np
import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows

from studydb.analysis.explaining import explain_state
from studydb.domain.life.states import Mode, Reason, State
from studydb.operations import control
from studydb.operations.create import load
from studydb.operations.reads import list_trials, trial_details
from studydb.schedulers import ASHA, MedianStopping

VALUES = [k / 8 for k in range(-6, 7)]


@pytest.mark.row("E3")
@pytest.mark.parametrize("reduction_factor", [1.5, 2, 3, 4])
@pytest.mark.parametrize("mode", Mode)
def test_trial_is_stopped_by_its_rank_as_in_syne_tune(database, mode, reduction_factor):
    scheduler = ASHA(max_t=9, reduction_factor=reduction_factor, rule="syne_tune")
    study = new_study(database, scheduler=scheduler, mode=mode, num_trials=None)
    worker, rng, scores = SimulatedWorker(database, study), Random(1), []

    for _ in range(60):
        run, value = worker.ask(), rng.choice(VALUES)
        verdict = run.report(value).verdict

        scores.append(value if mode is Mode.MIN else -value)
        rank = np.searchsorted(np.sort(scores), scores[-1]) / len(scores)
        assert (verdict is not None) == (rank > 1 / reduction_factor)


def test_asha_whose_max_t_exceeds_64_bits_is_stored_and_stops_trials(database):
    scheduler = ASHA(max_t=10**30)
    study = new_study(database, scheduler=scheduler)
    worker = SimulatedWorker(database, study)

    verdicts = [worker.ask().report(value).verdict for value in (0.1, 0.2)]

    assert load(database, study.name).scheduler == scheduler
    assert rows(database, "SELECT max(step) FROM rung") == [(4**30,)]
    assert verdicts[0] is None
    assert verdicts[1].reason is Reason.EARLY_STOPPED


@pytest.mark.row("E7")
@pytest.mark.parametrize("hard_stop", [True, False])
@pytest.mark.parametrize("mode", Mode)
def test_trial_is_stopped_or_paused_if_its_best_value_is_worse_than_the_median_of_the_other_trials_means(
    database, mode, hard_stop
):
    scheduler = MedianStopping(grace_period=2, interval=2, min_samples=4, hard_stop=hard_stop)
    study = new_study(database, scheduler=scheduler, mode=mode, num_trials=None)
    worker, rng, means = SimulatedWorker(database, study), Random(2), {2: [], 4: [], 6: []}
    n_worse = 0

    for _ in range(30):
        run, values, verdict = worker.ask(), [], None
        while len(values) < 6 and verdict is None:
            values.append(rng.choice(VALUES))
            verdict = run.report(values[-1]).verdict
            others, best = (
                means.get(len(values)),
                max(values, key=lambda one: mode_sign(mode) * one),
            )
            if others is None:
                assert verdict is None
                continue
            expected = len(others) >= 4 and (
                mode_sign(mode) * best < mode_sign(mode) * np.median(others)
            )
            assert (verdict is not None) == expected
            others.append(np.mean(values[1:]))
        n_worse += verdict is not None
        run.finish(outcome=Reason.PREEMPTED if verdict else Reason.COMPLETED)

    assert n_worse > 3
    state = State.TERMINATED if hard_stop else State.PAUSED
    states = [one.state for one in list_trials(database, study)]
    assert states.count(State.TERMINATED) == (30 if hard_stop else 30 - n_worse)
    assert states.count(state) == (30 if hard_stop else n_worse)


def mode_sign(mode):
    return 1 if mode is Mode.MAX else -1


def last_of_reporting_trials(database, *values, scheduler):
    """For each value, make a trial and report the value; return the last trial's attempt."""
    study = new_study(database, scheduler=scheduler, num_trials=None)
    worker = SimulatedWorker(database, study)
    for value in values:
        run = worker.ask()
        run.report(value)
    return run


def explanation(run):
    study = run.worker.study
    details = trial_details(run.worker.database, study, run.lease.number)
    return explain_state(study, details)


def test_trial_that_median_stopping_has_paused_waits_for_a_person_and_its_explanation_says_so(
    database,
):
    scheduler = MedianStopping(hard_stop=False)
    run = last_of_reporting_trials(database, 0.5, 0.25, 1.0, 0.75, scheduler=scheduler)

    run.finish(outcome=Reason.PREEMPTED)

    assert explanation(run) == (
        "loss (min) at rung 1 was 0.75, worse than the cutoff 0.5 of the earlier trials; "
        "the trial now has rank 3 of 4 there; the trial is paused until a person resumes it"
    )
    assert run.worker.claim() is None
    control.resume(database, run.worker.study, [run.lease.number], new_request())
    assert run.worker.claim().lease.number == run.lease.number


def test_stop_at_a_report_that_entered_no_rung_is_not_explained_by_an_earlier_rung(database):
    run = last_of_reporting_trials(
        database, 0.5, 0.25, 1.0, 0.5, scheduler=MedianStopping(interval=1, min_samples=3)
    )
    others = SimulatedWorker(database, run.worker.study)
    for _ in range(3):
        others.ask().report(0.0, 0.0)

    assert run.report(math.inf).verdict is not None
    run.finish(outcome=Reason.PREEMPTED)

    assert run.trial().reason is Reason.EARLY_STOPPED
    assert explanation(run) is None
