"""
A custom scheduler tells free workers to promote a trial, close a rung, make a trial or wait.

If the scheduler has no work left, a worker records the end of work.
"""

from dataclasses import dataclass, replace

import pytest
from fleet.trainables.scheduling import Cup
from harness.arrange import (
    SimulatedWorker,
    new_request,
    new_study,
    rows,
    unchanged_rows,
)
from harness.asked_scheduler import asked, failing

import studydb
from studydb.domain.deciding import DecisionFailed
from studydb.domain.life.decisions import Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason, Status
from studydb.domain.scheduling import Close, Idle
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.close_rung import close_rung
from studydb.operations.promote import NextStep, promote
from studydb.operations.study_progress import read_progress

RUNG = RungKey(0, 2)


@dataclass(frozen=True)
class Waiting(studydb.CustomScheduler):
    """Pauses each trial at step 2. `Answers.work`, set by a test, says what a free worker does."""

    max_t: int = 9
    milestones: tuple = (2,)
    resumes = True

    def judge(self, report, view):
        return Decision(Action.PAUSE, entry=Entry(view.key, report.score, waits=True))

    def next_work(self, view):
        return Answers.work(view)


class Answers:
    work = staticmethod(lambda _view: Idle.START_NEW)


@pytest.fixture
def answers(monkeypatch):
    return lambda work: monkeypatch.setattr(Answers, "work", staticmethod(work))


def waiting(database, *values, **overrides):
    given = {"scheduler": asked(Waiting()), "num_trials": len(values)} | overrides
    worker = SimulatedWorker(database, new_study(database, **given))
    for value in values:
        run = worker.take()
        run.report(value, value)
        run.finish(outcome=Reason.PREEMPTED)
    return worker


def best(view):
    return view.best_waiting(RUNG) or Idle.WAIT


def test_trial_that_another_worker_has_promoted_meanwhile_is_not_promoted_again(database, answers):
    worker = waiting(database, 0.5, 0.3, num_trials=3)

    def slow(view):
        answers(best)
        assert promote(database, worker.study, worker.claimant()) is NextStep.CLAIM
        return best(view)

    answers(slow)

    assert promote(database, worker.study, worker.claimant()) is NextStep.CLAIM
    assert len(rows(database, "SELECT id FROM event WHERE kind = 'promoted'")) == 1


def test_scheduler_is_asked_again_if_another_worker_already_runs_the_chosen_trial(
    database, answers
):
    worker = waiting(database, 0.5, 0.3, num_trials=3)

    def slow(view):
        answers(best)
        assert promote(database, worker.study, worker.claimant()) is NextStep.CLAIM
        assert worker.claim().lease.number == 1
        return best(view)

    answers(slow)

    assert promote(database, worker.study, worker.claimant()) is NextStep.CLAIM
    assert worker.claim().lease.number == 0


def test_scheduler_that_fails_when_asked_for_work_pauses_the_study_once(database):
    worker = waiting(database, 0.5)
    broken = failing(worker.study, DecisionFailed("it hangs"))

    # No trial can be claimed. Nevertheless `can_claim` is True, so that a worker calls `promote`,
    # which pauses the study.
    assert read_progress(database, broken).can_claim
    assert promote(database, broken, worker.claimant()) is NextStep.WAIT
    assert promote(database, broken, worker.claimant()) is NextStep.WAIT

    progress = read_progress(database, broken)
    assert progress.status is Status.PAUSED
    assert "has not named work: it hangs" in progress.pause_reason
    assert len(rows(database, "SELECT id FROM event WHERE kind = 'study paused'")) == 1


def test_process_that_cannot_ask_the_scheduler_trusts_the_recorded_end_of_work_until_an_extension(
    database, answers
):
    worker = waiting(database, 0.5, 0.3)
    reader = replace(worker.study, scheduler=replace(worker.study.scheduler, ask=None))
    answers(lambda _view: Idle.WAIT)
    assert read_progress(database, reader).status is Status.RUNNING

    acquirer = Acquirer(database, worker.study, worker_id=worker.id, lease_s=90.0)
    assert acquirer.acquire() is None

    assert read_progress(database, reader).status is Status.FINISHED
    with unchanged_rows(database):
        assert acquirer.look().status is Status.FINISHED
    control.extend(database, worker.study, new_request(), n_more=1)
    assert read_progress(database, reader).status is Status.RUNNING


def test_end_of_work_is_recorded_although_the_same_call_has_given_up_trials_of_a_closed_rung(
    database,
):
    """After trials were given up, the scheduler is asked again, because its rungs have changed."""
    study = new_study(database, scheduler=asked(Cup(milestones=(2,))), num_trials=2)
    worker = SimulatedWorker(database, study)
    for value in (0.5, 0.3):
        run = worker.take()
        run.report(value, value)
        run.finish(outcome=Reason.PREEMPTED)
    reader = replace(worker.study, scheduler=replace(worker.study.scheduler, ask=None))
    close_rung(database, worker.study, Close(RUNG, 0))

    assert promote(database, worker.study, worker.claimant()) is NextStep.WAIT

    assert read_progress(database, reader).status is Status.FINISHED


def test_worker_that_only_looks_records_the_end_of_work(database, answers):
    worker = waiting(database, 0.5)
    reader = replace(worker.study, scheduler=replace(worker.study.scheduler, ask=None))
    answers(lambda _view: Idle.WAIT)

    Acquirer(database, worker.study, worker_id=worker.id, lease_s=90.0).look()

    assert read_progress(database, reader).status is Status.FINISHED


def test_end_of_work_is_not_recorded_while_a_trial_is_underway_or_may_be_made(database, answers):
    worker = waiting(database, 0.5, num_trials=2)
    answers(lambda _view: Idle.START_NEW)
    assert promote(database, worker.study, worker.claimant()) is NextStep.START_NEW
    worker.take()
    answers(lambda _view: Idle.WAIT)
    assert promote(database, worker.study, worker.claimant()) is NextStep.WAIT

    assert rows(database, "SELECT id FROM event WHERE kind = 'scheduler idle'") == []


def test_custom_scheduler_closes_a_rung(database, answers):
    worker = waiting(database, 0.5, 0.3, 0.4)

    def work(view):
        if not view.rung(RUNG).is_closed:
            return Close(RUNG, 1)
        return view.best_waiting(RUNG) or Idle.WAIT

    answers(work)

    assert promote(database, worker.study, worker.claimant()) is NextStep.CLAIM
    run = worker.take()
    assert run.lease.number == 1
    run.finish()
    assert promote(database, worker.study, worker.claimant()) is NextStep.WAIT
    assert read_progress(database, worker.study).status is Status.FINISHED
