"""A plateau of a trial or of a study is found in the stored rows and the new results together."""

import math

import pytest
from harness.arrange import (
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    recover_after_expiry,
    rows,
)

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.plateau import Plateau
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Mode, Reason, State, Status
from studydb.operations import control
from studydb.operations.invalidate import invalidate
from studydb.operations.study_progress import read_progress

BY_RULE = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
SPENT = Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.LIMIT)
FLAT = Plateau("loss", std=0.01)


def under(database, *rules, **overrides):
    """A worker of a new study with these stop rules."""
    return SimulatedWorker(database, new_study(database, rules=rules, **overrides))


@pytest.mark.parametrize("sizes", [(1,) * 7, (7,), (3, 4), (2, 2, 3)])
def test_trial_stops_at_the_same_step_however_its_results_are_flushed(database, sizes):
    values = [0.9, 0.5, 0.3, 0.3, 0.3, 0.3, 0.1]  # the third to the sixth are alike
    run = under(database, FLAT).take()
    verdicts = []
    for size in sizes:
        verdicts.append(run.report(*values[:size]).verdict)
        del values[:size]

    assert verdicts[-1] == BY_RULE
    assert run.trial().summary.n_results == 6
    assert run.finish(outcome=Reason.PREEMPTED).reason is Reason.RULE_STOPPED


def test_plateau_of_a_trial_is_found_in_the_live_results_of_all_its_attempts(database, clock):
    worker = under(database, FLAT)
    run = worker.take()
    run.report(0.9, 0.3, 0.3)
    run.save()
    run.report(0.7)  # the next attempt trains this step again
    recover_after_expiry(clock, database, worker.study)

    again = worker.take()

    assert again.lease.attempt == 2
    assert again.report(0.3).verdict is None
    assert again.report(0.3).verdict == BY_RULE


def test_trial_does_not_stop_in_its_grace_period_or_with_a_value_worse_than_the_threshold(database):
    patient = under(database, Plateau("loss", grace_period=6)).take()
    demanding = under(database, Plateau("loss", threshold=0.2)).take()

    assert [patient.report(0.3).verdict for _ in range(6)] == [None] * 5 + [BY_RULE]
    assert [demanding.report(0.3).verdict for _ in range(6)] == [None] * 6
    assert [demanding.report(0.1).verdict for _ in range(4)] == [None] * 3 + [BY_RULE]


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_values_that_are_not_finite_are_no_plateau(database, gap):
    run = under(database, FLAT).take()

    verdicts = [run.report(value).verdict for value in (0.3, 0.3, gap, 0.3, 0.3, 0.3, 0.3)]

    assert verdicts == [None] * 6 + [BY_RULE]


@pytest.mark.row("B8")
def test_results_without_the_metric_are_no_plateau_and_the_trial_goes_on(database):
    run = under(database, Plateau("acc")).take()

    without = [run.report(0.3).verdict for _ in range(5)]
    given = [run.report(0.3, acc=0.5).verdict for _ in range(4)]

    assert without == [None] * 5
    assert given == [None] * 3 + [BY_RULE]


def test_threshold_and_plateau_of_one_study_each_stop_a_trial(database):
    rules = read_rules(["loss>=3", "Plateau(metric=loss, num_results=2, grace_period=2)"])
    first, second = under(database, *rules).take(), under(database, *rules).take()

    assert first.report(5.0).verdict == BY_RULE
    assert [second.report(0.5).verdict for _ in range(2)] == [None, BY_RULE]


def test_study_stops_once_its_best_values_are_alike(database):
    worker = under(database, Plateau("loss", std=0.01, top=3))
    runs = [worker.take() for _ in range(3)]
    other = worker.take()

    verdicts = [run.report(0.5, 0.25).verdict for run in runs]

    progress = read_progress(database, worker.study)
    assert verdicts == [None, None, SPENT]
    assert progress.status is Status.STOPPED
    assert progress.limit_reached == "rule Plateau(metric=loss, std=0.01, top=3) is met"
    assert worker.acquire() is None
    (verdict,) = worker.renew(other).held.values()
    assert verdict.reason is Reason.BUDGET_SPENT


def test_patience_counts_results_in_a_row_over_all_trials(database):
    worker = under(database, Plateau("loss", top=2, patience=3), mode=Mode.MAX)
    first, second = worker.take(), worker.take()

    # Each comment says for how many results in a row the two best values have been alike.
    verdicts = [first.report(0.5).verdict, second.report(0.5).verdict]  # 1
    verdicts.append(first.report(0.4).verdict)  # 2
    verdicts.append(second.report(0.9).verdict)  # no plateau: 0
    verdicts.append(first.report(0.9).verdict)  # 1
    verdicts.append(first.report(0.1).verdict)  # 2
    verdicts.append(second.report(0.2).verdict)  # 3

    assert verdicts == [None] * 6 + [SPENT]


def test_best_values_of_a_study_survive_its_workers(database, clock):
    worker = under(database, Plateau("loss", top=2))
    worker.take().report(0.25)
    recover_after_expiry(clock, database, worker.study)

    successor = SimulatedWorker(database, worker.study)

    assert successor.take().report(0.25, first=2).verdict == SPENT


@pytest.mark.parametrize("ends", [False, True])
def test_step_that_is_trained_again_counts_once_in_the_plateau_of_a_study(database, clock, ends):
    worker = under(database, Plateau("loss", top=2))
    worker.take().report(0.5, 0.25)
    recover_after_expiry(clock, database, worker.study)
    worker.take().finish(0.5, outcome=Reason.PREEMPTED)  # step 1 again

    again = worker.take()
    last = again.finish if ends else again.report
    last(0.5, 0.25, 0.1)  # steps 1 to 3: only step 3 is new

    assert again.lease.attempt == 3
    assert read_progress(database, worker.study).limit_reached is None


def test_study_that_a_plateau_stopped_goes_on_when_it_is_resumed(database):
    worker = under(database, Plateau("loss", top=2))
    run = worker.take()
    run.report(0.25, 0.25)
    control.set_status(database, worker.study, Status.RUNNING, new_request())

    other = worker.take()

    assert other.report(0.25).verdict is None
    assert other.report(0.25).verdict == SPENT


def test_pause_keeps_the_best_values(database):
    worker = under(database, Plateau("loss", top=2))
    worker.take().report(0.25)
    for status in (Status.PAUSED, Status.RUNNING):
        control.set_status(database, worker.study, status, new_request())

    assert worker.take().report(0.25).verdict == SPENT


def test_values_of_an_invalidated_trial_do_not_stop_the_study(database):
    worker = under(database, Plateau("loss", top=2))
    study = worker.study
    worker.take().finish(0.1)
    run = worker.take()
    invalidate(database, study, [0, run.lease.number], new_request(), reason="wrong labels")

    run.report(0.1)
    run.finish(0.1, outcome=Reason.PREEMPTED)
    worker.take().report(0.1)

    assert read_progress(database, study).status is Status.RUNNING
    worker.take().report(0.1)
    assert read_progress(database, study).status is Status.STOPPED


@pytest.mark.parametrize("stored", ["7", '"text"', "[[1]]", '[[["x"], 1]]'])
def test_best_values_that_cannot_be_read_are_replaced(database, stored):
    worker = under(database, Plateau("loss", top=2))
    change(database, f"UPDATE study SET best_values = '{stored}'")

    assert worker.take().report(0.25, 0.25).verdict == SPENT


def test_batch_that_is_sent_again_counts_once_for_the_plateau_of_a_study(database):
    worker = under(database, Plateau("loss", top=2))
    run = worker.take()
    batch = run.batch(0.25)

    assert [run.send(batch).verdict, run.send(batch).verdict] == [None, None]
    assert rows(database, "SELECT best_values FROM study")[0][0] in (
        "[[[0.25],0]]",
        "[[[0.25], 0]]",
        [[[0.25], 0]],
    )


def test_last_results_of_a_completed_trial_count_for_the_plateau_of_the_study(database):
    worker = under(database, Plateau("loss", top=2))

    ending = worker.take().finish(0.25, 0.25)

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.COMPLETED)
    assert read_progress(database, worker.study).status is Status.STOPPED
    assert enqueued(database, worker.study) == 1
