"""
A stored report with `done=True` completes its trial, even if the attempt is lost afterwards.

If this report meets a stop rule, the rule stops the trial instead.
"""

import pytest
from harness.arrange import (
    SimulatedWorker,
    live_results,
    new_request,
    new_study,
    recover_after_expiry,
    results,
    rows,
    unchanged_rows,
)

from studydb.domain.errors import LeaseLost
from studydb.domain.life.decisions import TRIAL_IS_DONE, Action, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.records import Batch
from studydb.operations import control
from studydb.operations.finish import finish
from studydb.operations.promote import NextStep, promote
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA

STOPPING = ASHA(max_t=9, reduction_factor=3)
PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion")
COMPLETED = (State.TERMINATED, Reason.COMPLETED)
ENTRIES = "SELECT score, action, waiting FROM rung_entry ORDER BY ordinal"
ATTEMPTS = "SELECT reason, verdict, verdict_reason, verdict_by FROM attempt ORDER BY trial_id"
JUDGED = ("STOP", "COMPLETED", "trial")


def state_of(run):
    trial = run.trial()
    return trial.state, trial.reason


def steps(database, run):
    return [result.step for result in live_results(database, run.worker.study, run.lease.number)]


def test_flush_stores_the_verdict_on_the_running_trial(database, run):
    answer = run.report(0.5, 0.4, done=True)

    assert answer.verdict == run.trial().verdict == TRIAL_IS_DONE
    assert run.trial().state is State.RUNNING
    assert steps(database, run) == [1, 2]


def test_results_after_a_result_with_done_are_dropped(database, run):
    last, after = results(0.5, done=True), results(0.4, 0.3, first=2)

    run.send(Batch(1, last + after, before=run.summary))
    with unchanged_rows(database):
        assert run.report(0.2).verdict == TRIAL_IS_DONE
    run.finish(0.1)

    assert state_of(run) == COMPLETED
    assert steps(database, run) == [1]


def test_finish_drops_results_of_its_batch_after_a_result_with_done(database, study, run):
    last, after = results(0.5, done=True), results(0.4, first=2)
    batch = Batch(1, last + after, before=run.summary)

    finish(database, study, lease=run.lease, outcome=Reason.COMPLETED, batch=batch, tally=run.tally)

    assert steps(database, run) == [1]
    assert rows(database, ATTEMPTS) == [("COMPLETED", *JUDGED)]


@pytest.mark.parametrize("scheduler", [None, STOPPING, PROMOTION], ids=["", "stops", "promotes"])
@pytest.mark.parametrize("value", [0.1, 0.9], ids=["best", "worst"])
def test_lost_attempt_whose_report_said_done_leaves_a_completed_trial(
    database, clock, scheduler, value
):
    study = new_study(database, **({} if scheduler is None else {"scheduler": scheduler}))
    worker = SimulatedWorker(database, study)
    worker.take().report(0.5)
    run = worker.take()
    run.report(value, done=True)
    run.save()

    recover_after_expiry(clock, database, study)

    assert state_of(run) == COMPLETED
    assert run.trial().attempt == 1
    assert rows(database, ATTEMPTS)[1] == ("LOST", *JUDGED)
    assert rows(database, "SELECT metric_summary IS NULL FROM trial WHERE number = 1") == [(False,)]


def test_attempt_whose_report_said_done_completes_its_trial_however_it_ends(database, study):
    worker = SimulatedWorker(database, study)
    for outcome in (Reason.FAILED, Reason.LOST, Reason.PREEMPTED):
        flushed, unflushed = worker.ask(), worker.ask()
        flushed.report(0.5, done=True)

        flushed.finish(outcome=outcome)
        unflushed.finish(0.5, outcome=outcome, done=True)

        assert state_of(flushed) == state_of(unflushed) == COMPLETED


def test_flush_that_is_sent_again_gets_the_same_verdict(database, run):
    batch = run.batch(0.5, done=True)
    answer = run.send(batch)

    with unchanged_rows(database):
        assert run.send(batch) == answer
    run.finish()
    with unchanged_rows(database):
        assert run.send(batch).verdict == TRIAL_IS_DONE


def test_report_that_says_done_after_the_lease_was_lost_changes_nothing(
    database, clock, study, run
):
    run.report(0.5)
    recover_after_expiry(clock, database, study)

    with unchanged_rows(database), pytest.raises(LeaseLost):
        run.report(0.4, done=True)

    assert run.trial().state is State.PENDING


@pytest.mark.parametrize("max_concurrent", [None, 2], ids=["one statement", "several statements"])
def test_finish_of_a_trial_that_is_done_leaves_the_same_rows_in_one_or_several_statements(
    database, max_concurrent
):
    run = SimulatedWorker(database, new_study(database, max_concurrent=max_concurrent)).take()

    ending = run.finish(0.5, done=True)

    assert (ending.state, ending.reason) == state_of(run) == COMPLETED
    assert rows(database, ATTEMPTS) == [("COMPLETED", *JUDGED)]


# --- rules, schedulers and people


def test_trial_whose_result_with_done_meets_a_rule_is_stopped_by_the_rule(database):
    study = new_study(database, rules=read_rules(["loss<0.2"]))
    run = SimulatedWorker(database, study).take()

    verdict = run.report(0.1, done=True).verdict

    assert verdict == Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)


@pytest.mark.parametrize("scheduler", [STOPPING, PROMOTION], ids=["stops", "promotes"])
def test_trial_that_is_done_at_a_rung_is_ranked_there_and_does_not_wait(database, scheduler):
    study = new_study(database, scheduler=scheduler)
    worker = SimulatedWorker(database, study)

    for value in (0.1, 0.9):
        run = worker.ask()
        assert run.report(value, done=True).verdict == TRIAL_IS_DONE
        run.finish()
        assert state_of(run) == COMPLETED

    assert rows(database, ENTRIES) == [(0.1, "CONTINUE", None), (0.9, "CONTINUE", None)]
    assert promote(database, study, worker.claimant()) is NextStep.START_NEW


def test_trials_that_are_done_count_when_other_trials_are_promoted(database):
    study = new_study(database, scheduler=PROMOTION, num_trials=3)
    worker = SimulatedWorker(database, study)
    for value, done in ((0.5, False), (0.7, True), (0.9, True)):
        run = worker.ask()
        run.report(value, done=done)
        run.finish(outcome=Reason.PREEMPTED)

    promote(database, study, worker.claimant())

    assert worker.claim().lease.number == 0
    assert not read_progress(database, study).can_claim


@pytest.mark.parametrize("request_", [control.pause, control.stop])
@pytest.mark.parametrize("is_first", [True, False], ids=["request first", "report first"])
def test_request_of_a_person_does_not_change_that_a_trial_is_done(
    database, clock, run, request_, is_first
):
    study = run.worker.study
    actions = [
        lambda: request_(database, study, [0], new_request()),
        lambda: run.report(0.5, done=True),
    ]
    for act in actions if is_first else reversed(actions):
        act()
    run.worker.renew(run)

    assert run.trial().verdict == TRIAL_IS_DONE
    recover_after_expiry(clock, database, study)

    assert state_of(run) == COMPLETED


@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
def test_study_that_pauses_or_stops_does_not_change_that_a_trial_is_done(
    database, clock, study, run, status
):
    run.report(0.5, done=True)
    control.set_status(database, study, status, new_request())

    recover_after_expiry(clock, database, study)

    assert state_of(run) == COMPLETED
