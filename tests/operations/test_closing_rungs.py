"""A rung closes once; the trials that it keeps are resumed, and the others are given up."""

import math
import threading
from contextlib import closing
from dataclasses import replace

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

from studydb.analysis.explaining import explain_state
from studydb.analysis.overview_text import ends_text
from studydb.db import connect
from studydb.domain.life.decisions import Action, DecidedBy, Decision, Entry, RungKey
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.scheduling import Close, Idle
from studydb.lease.acquire import Acquirer
from studydb.operations import control, summing
from studydb.operations.close_rung import close_rung
from studydb.operations.enqueue import enqueue
from studydb.operations.give_up import give_up
from studydb.operations.overview import read_overview
from studydb.operations.promote import NextStep, promote
from studydb.operations.reads import trial_details
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress
from studydb.schedulers import HyperBand
from studydb.store import promotions, rungs

FIRST = RungKey(0, 1)


def study_of(database, scheduler=None, **options):
    """
    Make a study, by default of three trials with HyperBand; the first rung waits for all three.

    Only the returned object has the scheduler; the study's row has FIFO.
    """
    options = {"num_trials": 3} | options
    return replace(new_study(database, **options), scheduler=scheduler or HyperBand(max_t=3))


@pytest.fixture
def study(database):
    return study_of(database)


@pytest.fixture
def worker(database, study):
    return SimulatedWorker(database, study)


def next_step(database, study, worker):
    return promote(database, study, worker.claimant())


def rung_of(database, *columns):
    (row,) = rows(database, f"SELECT {', '.join(columns)} FROM rung ORDER BY id LIMIT 1")
    return row


def reasons(database, study):
    return [trial_of(database, study, n).reason for n in range(len(states_of(database, study)))]


# --- closing


def test_rung_closes_once_all_trials_of_its_bracket_wait_and_the_best_trial_is_resumed(
    database, study, worker
):
    worker.wait_at_the_rung(0.5, 0.1, 0.9)

    assert next_step(database, study, worker) is NextStep.CLAIM

    assert states_of(database, study) == [State.TERMINATED, State.PENDING, State.TERMINATED]
    assert reasons(database, study) == [Reason.GIVEN_UP, None, Reason.GIVEN_UP]
    closed = rows(database, f"SELECT data FROM event WHERE kind = '{EventKind.RUNG_CLOSED}'")
    assert len(closed) == 1
    assert worker.claim().lease.number == 1


@pytest.mark.row("E5")
def test_rung_waits_for_a_running_trial_and_not_for_a_failed_trial(database):
    study = study_of(database, max_failures=0)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5, 0.1)
    run = worker.ask()

    assert next_step(database, study, worker) is NextStep.WAIT
    run.finish(outcome=Reason.FAILED)

    assert next_step(database, study, worker) is NextStep.CLAIM
    assert worker.claim().lease.number == 1


def test_trial_that_can_be_claimed_is_claimed_before_a_rung_closes(database, study, worker):
    worker.wait_at_the_rung(0.5, 0.1)
    enqueue(database, study, {}, new_request())

    assert next_step(database, study, worker) is NextStep.CLAIM
    assert rung_of(database, "closed_at") == (None,)
    assert read_progress(database, study).status is Status.RUNNING
    worker.claim().finish(0.2, outcome=Reason.FAILED)

    assert next_step(database, study, worker) is NextStep.CLAIM
    assert rung_of(database, "closed_at") != (None,)


@pytest.mark.parametrize("end", ["stop", "pause"])
def test_rung_does_not_wait_for_a_trial_that_a_person_has_stopped_or_paused(
    database, study, worker, end
):
    worker.wait_at_the_rung(0.5, 0.1)
    enqueue(database, study, {}, new_request())

    getattr(control, end)(database, study, [2], new_request())

    assert next_step(database, study, worker) is NextStep.CLAIM


def test_rung_waits_for_a_trial_in_back_off_and_for_a_trial_paused_with_its_study(database, clock):
    study = study_of(database, max_failures=1)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5, 0.1)
    run = worker.ask()
    control.set_status(database, study, Status.PAUSED, new_request())
    run.finish(outcome=Reason.PREEMPTED)
    change(database, "UPDATE study SET status = 'RUNNING'")

    assert trial_of(database, study, 2).paused_by == DecidedBy.STUDY
    assert next_step(database, study, worker) is NextStep.WAIT

    recover(database, study)
    worker.claim().finish(outcome=Reason.FAILED)
    assert next_step(database, study, worker) is NextStep.WAIT


def test_rung_keeps_the_first_of_trials_with_equal_scores(database, study, worker):
    worker.wait_at_the_rung(0.5, 0.5, 0.5)

    next_step(database, study, worker)

    assert states_of(database, study) == [State.PENDING, State.TERMINATED, State.TERMINATED]


def test_infinite_scores_are_ranked_and_a_rung_may_keep_no_trial(database, study, worker):
    worker.wait_at_the_rung(math.inf, -math.inf, 0.5)
    close_rung(database, study, Close(FIRST, keep=0))
    with database.begin(write=False) as txn:
        view = promotions.Queues(txn, study_id=study.id)
        assert view.best_waiting(FIRST) is None
        assert view.rung(FIRST).closed_cutoff is None

    give_up(database, study)

    assert set(reasons(database, study)) == {Reason.GIVEN_UP}


def test_rung_closes_only_once(database, study, worker):
    worker.wait_at_the_rung(0.5, 0.1, 0.9)
    close_rung(database, study, Close(FIRST, keep=1))
    cut = rung_of(database, "closed_cutoff", "closed_ordinal")

    close_rung(database, study, Close(FIRST, keep=3))

    assert rung_of(database, "closed_cutoff", "closed_ordinal") == cut == (0.1, 1)


def test_duplicate_of_a_request_that_promoted_a_trial_closes_no_other_rung(database):
    study = study_of(database, HyperBand(max_t=9))
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5, 0.1, 0.9)
    claimant = worker.claimant()
    assert promote(database, study, claimant) is NextStep.CLAIM
    run = worker.claim()
    for _ in range(3):  # up to the rung at step 3
        run.report(0.1)
    run.finish(outcome=Reason.PREEMPTED)
    closed = "SELECT step FROM rung WHERE closed_at IS NOT NULL ORDER BY step"

    assert promote(database, study, claimant) is NextStep.CLAIM
    assert rows(database, closed) == [(1,)]

    assert next_step(database, study, worker) is NextStep.CLAIM
    assert rows(database, closed) == [(1,), (3,)]


def test_rung_of_a_paused_study_does_not_close(database, study, worker):
    worker.wait_at_the_rung(0.5, 0.1, 0.9)
    control.set_status(database, study, Status.PAUSED, new_request())

    next_step(database, study, worker)

    assert rung_of(database, "closed_at") == (None,)
    assert State.TERMINATED not in states_of(database, study)


def test_closing_waits_for_a_report_at_the_rung(database, storage_url, study, worker):
    if not database.postgresql:
        pytest.skip("SQLite has one writer at a time")
    worker.wait_at_the_rung(0.5, 0.4)
    run = worker.ask()
    with closing(connect(storage_url)) as other:
        thread = threading.Thread(
            target=close_rung, args=(other, study, Close(FIRST, keep=1)), daemon=True
        )
        with database.begin() as txn:
            rung = rungs.lock(txn, study_id=study.id, key=FIRST)
            record(txn, rung, run, 0.1)
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
        thread.join(30)

    assert rung_of(database, "closed_cutoff") == (0.1,)


def test_report_waits_only_for_reports_in_its_own_bracket(database, storage_url):
    if not database.postgresql:
        pytest.skip("SQLite has one writer at a time")
    study = study_of(database, HyperBand(max_t=9), num_trials=10)
    with closing(connect(storage_url)) as other:
        worker = SimulatedWorker(other, study)
        first, *_, last = (worker.ask() for _ in range(10))
        assert (first.lease.bracket, last.lease.bracket) == (0, 1)
        reporting = threading.Thread(target=first.report, args=(0.5,), daemon=True)
        with database.begin() as txn:
            rungs.create(txn, study_id=study.id, spec=study.scheduler.rung_spec(FIRST))
        with database.begin() as txn:
            rungs.lock(txn, study_id=study.id, key=FIRST)
            answer = last.report(0.5, 0.4, 0.3)
            reporting.start()
            reporting.join(0.5)
            assert reporting.is_alive()
        reporting.join(30)

    assert answer.verdict.action is Action.PAUSE
    assert rows(database, "SELECT bracket, step, n_entries FROM rung ORDER BY id") == [
        (0, 1, 1),
        (1, 3, 1),
    ]


def record(txn, rung, run, value):
    """Record a trial's value at a locked rung, and that the trial waits there."""
    (result,) = run.batch(value).results
    rungs.record(
        txn,
        rung=rung,
        neighbours=rungs.query_neighbours(txn, rung=rung, trial_id=run.lease.trial_id)(),
        lease=run.lease,
        result=result,
        entry=Entry(FIRST, value, waits=True),
        action=Action.PAUSE,
        cutoff=None,
    )


# --- late trials


def test_late_trial_goes_on_if_it_is_not_worse_than_the_cutoff(database):
    study = study_of(database, num_trials=5)
    worker = SimulatedWorker(database, study)
    late = [worker.ask() for _ in range(3)]
    with database.begin() as txn:
        rungs.create(txn, study_id=study.id, spec=study.scheduler.rung_spec(FIRST))
    close_rung(database, study, Close(FIRST, keep=1))
    change(database, "UPDATE rung SET closed_cutoff = 0.5, closed_ordinal = 0")

    verdicts = [run.report(value).verdict for run, value in zip(late, (0.5, 0.6, 0.4), strict=True)]

    assert [verdict and verdict.reason for verdict in verdicts] == [
        None,
        Reason.EARLY_STOPPED,
        None,
    ]


class AlwaysWaits(HyperBand):
    """Each report before `max_t` pauses its trial at the first rung, even if the rung is closed."""

    kind = "AlwaysWaits"

    def judge(self, report, view):
        if report.step >= self.max_t:
            return super().judge(report, view)
        entry = Entry(FIRST, report.score, waits=True)
        return Decision(Action.PAUSE, Reason.PAUSED, entry)


def test_trial_is_given_up_if_it_pauses_at_a_rung_that_is_over(database):
    study = study_of(database, AlwaysWaits(max_t=3))
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5)
    control.stop(database, study, [0], new_request())
    close_rung(database, study, Close(FIRST, keep=0))
    give_up(database, study)
    assert rung_of(database, "is_over") in ((True,), (1,))

    worker.wait_at_the_rung(0.1)

    assert next_step(database, study, worker) is not NextStep.CLAIM
    assert trial_of(database, study, 1).reason is Reason.GIVEN_UP


# --- giving up


def test_trial_paused_by_a_person_at_a_closed_rung_is_given_up_once_resumed(
    database, study, worker
):
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    control.pause(database, study, [2], new_request())
    close_rung(database, study, Close(FIRST, keep=1))

    give_up(database, study)
    assert reasons(database, study) == [None, Reason.GIVEN_UP, None]
    control.resume(database, study, [2], new_request())
    give_up(database, study)

    assert reasons(database, study) == [None, Reason.GIVEN_UP, Reason.GIVEN_UP]
    assert states_of(database, study)[0] is State.PAUSED


def paused_at_the_rung(database, study, worker, *values, pause):
    """Let trials wait at the rung, and pause some of them as a person does."""
    worker.wait_at_the_rung(*values)
    control.pause(database, study, pause, new_request())


def waiting_after(database, study, *, keep, resume):
    """Close the rung, resume trials, call `give_up`; return the numbers of the PAUSED trials."""
    assert close_rung(database, study, Close(FIRST, keep=keep))
    control.resume(database, study, resume, new_request())
    give_up(database, study, is_idle=True)
    return [n for n, state in enumerate(states_of(database, study)) if state is State.PAUSED]


def test_trial_that_a_person_has_paused_is_not_kept_instead_of_another_trial(
    database, study, worker
):
    paused_at_the_rung(database, study, worker, 0.1, 0.2, 0.3, pause=[0])

    assert next_step(database, study, worker) is NextStep.CLAIM

    assert states_of(database, study) == [State.PAUSED, State.PENDING, State.TERMINATED]


@pytest.mark.parametrize(
    ("values", "paused", "keep", "waiting"),
    [
        ((0.1, 0.2, 0.3), [0], 1, [0, 1]),  # trial 0 is better than trial 1, which is kept
        ((0.3, 0.2, 0.1), [0], 1, [2]),  # trial 0 is worse than trial 2, which is kept
        ((0.2, 0.2, 0.3), [1], 1, [0]),  # of equal trials, the first is the better
        ((0.2, 0.2, 0.3), [0], 1, [0, 1]),
        # Trial 1 is kept, and so is trial 0, the better of the paused trials.
        ((0.1, 0.2, 0.3), [0, 2], 2, [0, 1]),
        ((0.1, 0.2, 0.3), [0, 1], 2, [0, 1, 2]),  # trial 2 is kept; the paused trials are better
        ((0.3, 0.2, 0.1), [0, 1, 2], 1, [2]),
        ((0.3, 0.2, 0.1), [0, 1, 2], 9, [0, 1, 2]),
        ((0.3, 0.2, 0.1), [0], 0, []),
    ],
)
def test_trial_resumed_after_its_rung_has_closed_goes_on_if_the_rung_would_have_kept_it(
    database, values, paused, keep, waiting
):
    study = study_of(database)
    paused_at_the_rung(database, study, SimulatedWorker(database, study), *values, pause=paused)

    assert waiting_after(database, study, keep=keep, resume=paused) == waiting


def test_trial_that_a_person_asks_to_pause_before_its_report_is_not_kept_instead_of_another_trial(
    database, study, worker
):
    worker.wait_at_the_rung(0.2)
    run = worker.ask()
    control.pause(database, study, [1], new_request())
    assert run.report(0.1).verdict.action is Action.PAUSE

    close_rung(database, study, Close(FIRST, keep=1))

    run.finish(outcome=Reason.PREEMPTED)
    assert trial_of(database, study, 1).paused_by == DecidedBy.PERSON
    assert rung_of(database, "closed_cutoff") == (0.2,)


def test_trial_resumed_by_a_person_at_an_open_rung_is_not_given_up(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    control.resume(database, study, [2], new_request())
    close_rung(database, study, Close(FIRST, keep=1))

    give_up(database, study)

    assert states_of(database, study) == [State.PAUSED, State.TERMINATED, State.PENDING]


def test_trials_that_are_given_up_get_the_summary_of_their_metrics(
    database, study, worker, monkeypatch
):
    monkeypatch.setattr(summing, "MOST_IN_TRANSACTION", 1)  # two trials are summed up after COMMIT
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    close_rung(database, study, Close(FIRST, keep=0))

    give_up(database, study)

    found = rows(database, "SELECT metric_summary FROM trial ORDER BY number")
    assert all("0." in str(summary) for (summary,) in found)


def test_explanation_names_the_value_at_the_rung_if_the_trial_was_given_up(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    next_step(database, study, worker)

    why = explain_state(study, trial_details(database, study, 2))

    assert why == (
        "loss (min) at rung 1 was 0.3; the trial now has rank 3 of 3 there; the rung closed "
        "without keeping this trial"
    )


def test_rung_is_over_only_when_no_trial_waits(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    close_rung(database, study, Close(FIRST, keep=1))
    give_up(database, study)
    assert rung_of(database, "is_over") in ((False,), (0,))

    next_step(database, study, worker)
    give_up(database, study)

    assert rung_of(database, "is_over") in ((True,), (1,))


def test_rung_is_not_over_if_a_trial_pauses_there_while_trials_are_given_up(
    database, storage_url, study, worker
):
    if not database.postgresql:
        pytest.skip("SQLite has one writer at a time")
    with database.begin() as txn:
        rungs.create(txn, study_id=study.id, spec=study.scheduler.rung_spec(FIRST))
    run = worker.ask()
    close_rung(database, study, Close(FIRST, keep=1))
    with closing(connect(storage_url)) as other:
        thread = threading.Thread(target=give_up, args=(other, study), daemon=True)
        with database.begin() as txn:
            record(txn, rungs.lock(txn, study_id=study.id, key=FIRST), run, 0.1)
            thread.start()
            thread.join(0.5)
        thread.join(30)

    assert rung_of(database, "is_over") == (False,)


# --- workers and progress


class Waits(HyperBand):
    """Has no work for free workers: no new trial, and no promotion."""

    kind = "Waits"

    def next_work(self, view):  # noqa: ARG002
        return Idle.WAIT


@pytest.mark.row("A7")
def test_worker_makes_no_trial_while_the_scheduler_waits(database):
    study = study_of(database, Waits(max_t=3))
    worker = SimulatedWorker(database, study)
    worker.ask()
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=90.0)

    assert acquirer.acquire() is None
    assert len(states_of(database, study)) == 1
    assert not read_progress(database, study).can_claim


def test_study_is_finished_if_its_scheduler_waits_while_nothing_runs(database):
    study = study_of(database, Waits(max_t=3))
    run = SimulatedWorker(database, study).ask()
    assert read_progress(database, study).status is Status.RUNNING

    run.finish()

    assert read_progress(database, study).status is Status.FINISHED


def test_study_is_not_finished_while_a_rung_can_close_or_trials_are_to_be_given_up(
    database, study, worker
):
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    assert read_progress(database, study).can_claim
    close_rung(database, study, Close(FIRST, keep=0))

    progress = read_progress(database, study)
    assert (progress.status, progress.can_claim) == (Status.RUNNING, True)

    give_up(database, study)
    assert read_progress(database, study).status is Status.FINISHED


def test_status_counts_the_trials_that_were_given_up(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.5, 0.9)
    assert next_step(database, study, worker) is NextStep.CLAIM
    worker.claim().finish(0.1, 0.1, 0.1)
    give_up(database, study)

    assert ends_text(read_overview(database, study)) == "1 completed, 2 given up"
