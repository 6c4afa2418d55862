"""A worker that finds no trial to claim does what the scheduler says: it closes rungs or waits."""

import json
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from harness.arrange import (
    SimulatedWorker,
    change,
    new_request,
    new_study,
    rows,
    states_of,
    trial_of,
)

from studydb.db import connect
from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.rules import Threshold
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.scheduling import Close, Idle
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.close_rung import close_rung
from studydb.operations.give_up import give_up
from studydb.operations.promote import NextStep, promote
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress
from studydb.schedulers import HyperBand
from studydb.schedulers.base import BaseScheduler
from studydb.store import closings, promotions

FIRST = RungKey(0, 1)


def study_of(database, scheduler=None, **options):
    options = {"num_trials": 3} | options
    return replace(new_study(database, **options), scheduler=scheduler or HyperBand(max_t=3))


def acquirer_of(database, study, worker):
    return Acquirer(database, study, worker_id=worker.id, lease_s=90.0)


class NeverStarts(HyperBand):
    """Tells a worker to wait where HyperBand tells it to make a new trial."""

    kind = "NeverStarts"

    def next_work(self, view):
        work = super().next_work(view)
        return Idle.WAIT if work is Idle.START_NEW else work


@dataclass(frozen=True)
class OneRung(BaseScheduler):
    """
    Pauses all trials at the only rung of their bracket, and tells free workers to wait.

    With `by_draw`, each draw has a separate bracket; otherwise all trials are in bracket 0.
    """

    by_draw: bool = False
    resumes = True

    def bracket_of(self, *, seed, draw):  # noqa: ARG002
        return draw if self.by_draw else 0

    def next_decision_step(self, bracket, step):  # noqa: ARG002
        return 1 if step < 1 else None

    def locks(self, bracket, step):  # noqa: ARG002
        return (RungKey(bracket, 1),)

    def judge(self, report, view):  # noqa: ARG002
        entry = Entry(RungKey(report.bracket, 1), report.score, waits=True)
        return Decision(Action.PAUSE, Reason.PAUSED, entry)

    def next_work(self, view):  # noqa: ARG002
        return Idle.WAIT


class ClosesAll(OneRung):
    """Starts twelve trials, then closes their rungs and keeps none of the trials."""

    def next_work(self, view):
        if view.next_draw < 12:
            return Idle.START_NEW
        still_open = (key for key in view.rungs() if not view.rung(key).is_closed)
        return next((Close(key, 0) for key in still_open), Idle.WAIT)


# --- a new trial only if the scheduler says so


def test_worker_makes_no_trial_if_the_trials_that_the_scheduler_chooses_cannot_be_promoted(
    database, storage_url
):
    if not database.postgresql:
        pytest.skip("SQLite has one writer at a time")
    study = study_of(database, NeverStarts(max_t=3), num_trials=10)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    close_rung(database, study, Close(FIRST, keep=2))
    assert promote(database, study, worker.claimant()) is NextStep.CLAIM

    with closing(connect(storage_url)) as other, other.begin() as txn:
        txn.raw("SELECT id FROM trial WHERE number = 0 FOR UPDATE")  # the lock that a claim holds
        assert acquirer_of(database, study, worker).acquire() is None

    assert len(states_of(database, study)) == 3


def test_worker_waits_if_max_concurrent_trials_run(database):
    study = study_of(database, NeverStarts(max_t=3), num_trials=10, max_concurrent=1)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    close_rung(database, study, Close(FIRST, keep=2))
    change(database, "UPDATE study SET n_running = 1")

    assert promote(database, study, worker.claimant()) is NextStep.WAIT


def test_worker_closes_many_rungs_and_makes_no_trial_afterwards(database):
    study = study_of(database, ClosesAll(by_draw=True), num_trials=20)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(*[0.1] * 12)

    assert acquirer_of(database, study, worker).acquire() is None

    assert len(states_of(database, study)) == 12
    assert rows(database, "SELECT count(*) FROM rung WHERE closed_at IS NULL") == [(0,)]


# --- progress


@pytest.mark.parametrize("scheduler", [HyperBand(max_t=3), None], ids=["rungs", "no rungs"])
def test_study_is_not_finished_while_trials_that_were_paused_with_the_study_are_still_paused(
    database, scheduler
):
    study = new_study(database, num_trials=1)
    study = study if scheduler is None else replace(study, scheduler=scheduler)
    run = SimulatedWorker(database, study).ask()
    control.set_status(database, study, Status.PAUSED, new_request())
    run.finish(outcome=Reason.PREEMPTED)
    change(database, "UPDATE study SET status = 'RUNNING', paused_by = NULL")

    progress = read_progress(database, study)

    assert progress.status is Status.RUNNING
    assert not progress.is_exhausted(0)
    recover(database, study)
    assert states_of(database, study) == [State.PENDING]


class ClosesTheFirst(BaseScheduler):
    """Closes a rung again and again, even if no trial has reached it."""

    resumes = True

    def next_work(self, view):  # noqa: ARG002
        return Close(FIRST, 1)


def test_study_finishes_if_the_scheduler_closes_a_rung_that_no_trial_has_reached(database):
    study = study_of(database, ClosesTheFirst(), num_trials=1)
    worker = SimulatedWorker(database, study)
    worker.ask().finish(0.5)

    assert acquirer_of(database, study, worker).acquire() is None
    assert read_progress(database, study).status is Status.FINISHED


# --- what the scheduler reads


def test_scheduler_sees_a_closed_rung_at_which_no_trial_waits(database):
    study = study_of(database)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    promote(database, study, worker.claimant())
    give_up(database, study)

    with database.begin(write=False) as txn:
        view = promotions.Queues(txn, study_id=study.id)
        rung = view.rung(FIRST)
        assert view.rungs() == []
        assert view.rung(RungKey(7, 1)).n_entries == 0

    assert (rung.is_closed, rung.closed_cutoff, rung.n_entries, rung.n) == (True, 0.1, 3, 3)
    assert rung.cutoff is not None


def test_rung_that_no_trial_has_entered_does_not_close(database):
    rule = Threshold("loss", ">=", 9.0)
    study = study_of(database, num_trials=1, rules=(rule,))
    worker = SimulatedWorker(database, study)
    run = worker.ask()
    run.report(9.5)  # the rule stops the trial before it enters the rung
    run.finish(outcome=Reason.PREEMPTED)
    assert rows(database, "SELECT n_entries, closed_at FROM rung") == [(0, None)]

    promote(database, study, worker.claimant())

    assert rows(database, "SELECT n_entries, closed_at FROM rung") == [(0, None)]
    assert read_progress(database, study).status is Status.FINISHED


@dataclass(frozen=True)
class EntersOnce(BaseScheduler):
    """Judges each report. A trial enters the rung with its first report."""

    def next_decision_step(self, bracket, step):  # noqa: ARG002
        return step + 1

    def locks(self, bracket, step):  # noqa: ARG002
        return (FIRST,)

    def judge(self, report, view):
        rung = view.rung(FIRST)
        assert rung.n_entries == rung.n == int(rung.entered)
        return CONTINUE if rung.entered else Decision(entry=Entry(FIRST, report.score))


def test_later_report_of_a_batch_sees_the_rung_entry_of_an_earlier_report(database):
    study = study_of(database, EntersOnce())
    run = SimulatedWorker(database, study).ask()

    run.report(0.1, 0.2, 0.3)

    assert rows(database, "SELECT n_entries FROM rung") == [(1,)]


# --- closing and giving up


@pytest.mark.slow
def test_a_hundred_closed_rungs_with_trials_that_a_person_has_paused_hold_up_no_other_rung(
    database,
):
    n = closings.MOST + 2
    study = study_of(database, OneRung(by_draw=True), num_trials=n)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(*[0.1] * n)
    control.pause(database, study, list(range(closings.MOST)), new_request())
    for bracket in range(n):
        close_rung(database, study, Close(RungKey(bracket, 1), 0))

    give_up(database, study)

    assert states_of(database, study)[-2:] == [State.TERMINATED] * 2


@pytest.mark.parametrize(("keep", "kept"), [(-1, 0), (0, 0), (2, 2), (3, 3), (2**70, 3)])
def test_closed_rung_keeps_as_many_trials_as_the_scheduler_says_but_only_trials_that_wait(
    database, keep, kept
):
    study = study_of(database)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.3, 0.1, 0.2)

    assert close_rung(database, study, Close(FIRST, keep))
    give_up(database, study)

    assert states_of(database, study).count(State.PAUSED) == kept
    ((data,),) = rows(database, "SELECT data FROM event WHERE kind = 'rung closed'")
    data = data if isinstance(data, dict) else json.loads(data)
    assert data["kept"] == kept


def test_trial_ends_without_a_summary_if_its_results_cannot_be_summed_up(database):
    study = study_of(database)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    last = "trial_id = (SELECT max(id) FROM trial)"
    change(database, f"UPDATE result SET metrics = '[1]' WHERE {last}")

    assert promote(database, study, worker.claimant()) is NextStep.CLAIM

    found = [trial_of(database, study, number) for number in range(3)]
    assert [one.reason for one in found] == [None, Reason.GIVEN_UP, Reason.GIVEN_UP]
    summaries = rows(database, "SELECT metric_summary FROM trial ORDER BY number")
    assert [str(one) != "None" for (one,) in summaries] == [False, True, False]


def test_idle_worker_gives_up_more_than_a_hundred_trials_in_one_call(database):
    study = study_of(database, OneRung(), num_trials=150)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(*[0.1] * 150)
    close_rung(database, study, Close(FIRST, keep=0))

    assert acquirer_of(database, study, worker).acquire() is None

    assert read_progress(database, study).status is Status.FINISHED
