"""People pause, resume and stop trials and studies, in every state of a trial."""

import pytest
from harness.arrange import (
    PERSON,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    rows,
    states_of,
    trial_in,
    trial_of,
    unchanged_rows,
)

from studydb.db.schema import trial as trial_table
from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import FINAL, Reason, State, Status
from studydb.operations import control
from studydb.operations.recover import recover
from studydb.operations.renew import is_requested, renew
from studydb.operations.study_progress import read_progress

PAUSED_BY_PERSON = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.PERSON)
PAUSED_BY_STUDY = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)
STOPPED_BY_PERSON = Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.PERSON)
STOPPED_BY_STUDY = Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.STUDY)

REQUESTS = [control.pause, control.resume, control.stop]


def send(request, study, database, *numbers):
    """Make a person's request for trials, by default for trial 0."""
    request(database, study, numbers or [0], new_request())


def set_status(database, study, status):
    control.set_status(database, study, status, new_request())


def renewed(run):
    return run.worker.renew(run).held[run.lease.token]


# The calls by which an attempt receives a request. Each of them returns the verdict.
RECEIVE = {"flush": lambda run: run.report(0.5).verdict, "renewal": renewed}


# --- trials that do not run


@pytest.mark.row("A13")
@pytest.mark.parametrize(
    ("request_", "source", "target"),
    [
        (control.pause, State.PENDING, State.PAUSED),
        (control.pause, State.PAUSED, State.PAUSED),
        (control.resume, State.PENDING, State.PENDING),
        (control.resume, State.PAUSED, State.PENDING),
        (control.stop, State.PENDING, State.TERMINATED),
        (control.stop, State.PAUSED, State.TERMINATED),
    ],
)
def test_request_moves_a_pending_or_paused_trial(database, study, request_, source, target):
    trial_in(database, study, source)

    send(request_, study, database)

    trial = trial_of(database, study, 0)
    assert trial.state is target
    assert trial.reason is (Reason.CANCELLED if target in FINAL else None)
    assert trial.paused_by == ("person" if target is State.PAUSED else None)
    assert read_progress(database, study).counts.total == 1


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("state", sorted(FINAL))
def test_request_for_an_ended_trial_changes_no_trial(database, study, request_, state):
    trial_in(database, study, state)
    enqueued(database, study)
    message = rf"Trial 0 of .* has ended \({state}"

    with unchanged_rows(database), pytest.raises(NotAllowed, match=message):
        send(request_, study, database, 1, 0)


@pytest.mark.parametrize("request_", REQUESTS)
def test_request_for_an_unknown_number_changes_no_trial(database, study, request_):
    trial_in(database, study, State.PENDING)

    with unchanged_rows(database), pytest.raises(UnknownTrial, match="has no trial 7"):
        send(request_, study, database, 0, 7)


def test_stopped_trial_keeps_its_results_and_their_summary(database, study, run):
    run.report(0.9, 0.3)
    run.finish(0.5, outcome=Reason.PREEMPTED)

    send(control.stop, study, database)

    with database.begin(write=False) as txn:
        (row,) = txn.all(trial_table.select())
    assert row.metric_summary["loss"]["min"] == 0.3
    assert (row.rank_score, row.last_value) == (0.3, 0.5)


def test_requests_are_recorded_with_their_actor(database, study):
    enqueued(database, study)
    send(control.pause, study, database)
    set_status(database, study, Status.STOPPED)
    control.extend(database, study, new_request(), n_more=1)

    kinds = rows(database, f"SELECT kind FROM event WHERE actor = '{PERSON}' ORDER BY id")
    assert kinds == [("created",), ("enqueued",), ("paused",), ("study stopped",), ("extended",)]


# --- RUNNING trials


@pytest.mark.row("C5")
@pytest.mark.parametrize("request_", [control.pause, control.stop])
@pytest.mark.parametrize("receive", RECEIVE)
def test_request_becomes_a_verdict_at_the_next_flush_or_renewal(run, receive, request_):
    verdict = PAUSED_BY_PERSON if request_ is control.pause else STOPPED_BY_PERSON
    send(request_, run.worker.study, run.worker.database)
    before = run.trial().verdict

    assert RECEIVE[receive](run) == verdict
    assert before is None
    assert run.trial().verdict == verdict
    assert run.report(0.4).verdict == verdict


@pytest.mark.row("E1")
def test_pause_takes_effect_when_the_attempt_ends_and_lasts_until_resume(database, study, run):
    send(control.pause, study, database)
    run.report(0.5)

    run.finish(outcome=Reason.PREEMPTED)

    trial = run.trial()
    assert (trial.state, trial.paused_by, trial.reason) == (State.PAUSED, "person", None)
    assert rows(database, "SELECT reason, verdict_by FROM attempt") == [("PAUSED", "person")]
    send(control.resume, study, database)
    assert run.worker.claim().lease.attempt == 2


@pytest.mark.row("A13")
def test_stop_takes_effect_when_the_attempt_ends(database, study, run):
    send(control.stop, study, database)

    run.finish(0.5, outcome=Reason.PREEMPTED)

    assert run.trial().reason is Reason.CANCELLED
    assert run.trial().summary.last_value == 0.5


def test_failure_after_a_request_to_pause_is_counted_and_the_trial_pauses(database, run, study):
    send(control.pause, study, database)
    run.report(0.5)

    run.finish(outcome=Reason.FAILED)

    trial = run.trial()
    assert (trial.state, trial.failures) == (State.PAUSED, 1)


def test_resume_withdraws_a_request_that_no_attempt_has_received(database, study, run):
    send(control.pause, study, database)

    send(control.resume, study, database)

    assert run.report(0.5).verdict is None
    assert renewed(run) is None


@pytest.mark.parametrize("first", RECEIVE)
@pytest.mark.parametrize("then", RECEIVE)
def test_resume_withdraws_the_verdict_of_a_request_to_pause(database, study, run, first, then):
    send(control.pause, study, database)
    verdict_before = RECEIVE[first](run)

    send(control.resume, study, database)

    assert verdict_before is not None
    assert RECEIVE[then](run) is None
    assert run.trial().verdict is None


@pytest.mark.parametrize("receive", RECEIVE)
@pytest.mark.parametrize("first", [control.pause, control.stop])
def test_verdict_follows_the_last_request(database, study, run, receive, first):
    last = control.stop if first is control.pause else control.pause
    send(first, study, database)
    verdict_before = renewed(run)

    send(last, study, database)

    verdict = STOPPED_BY_PERSON if last is control.stop else PAUSED_BY_PERSON
    assert verdict_before != verdict
    assert RECEIVE[receive](run) == verdict
    assert run.trial().verdict == verdict


@pytest.mark.parametrize("receive", RECEIVE)
def test_requests_do_not_change_the_verdict_of_a_rule(database, receive):
    study = new_study(database, rules=read_rules(["loss>=3"]))
    run = SimulatedWorker(database, study).take()
    verdict_before = run.report(4.0).verdict

    send(control.pause, study, database)
    assert RECEIVE[receive](run) == verdict_before
    send(control.resume, study, database)
    assert RECEIVE[receive](run) == verdict_before

    run.finish(outcome=Reason.PREEMPTED)
    assert run.trial().reason is Reason.RULE_STOPPED


def test_renewal_returns_the_verdict_on_each_trial(database, study, worker):
    runs = [worker.take() for _ in range(4)]
    send(control.stop, study, database, 1)
    send(control.pause, study, database, 2)
    runs[3].finish()

    held = renew(database, study, worker_id=worker.id, held=[run.lease for run in runs]).held

    tokens = [run.lease.token for run in runs]
    assert held == dict(zip(tokens, [None, STOPPED_BY_PERSON, PAUSED_BY_PERSON], strict=False))


def test_renewal_returns_the_request_for_its_worker(database, worker):
    change(database, "UPDATE worker SET request = 'DRAIN'")

    assert worker.renew().request == "DRAIN"


# --- studies


@pytest.mark.row("C5")
@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
@pytest.mark.parametrize("receive", RECEIVE)
def test_pause_or_stop_of_a_study_becomes_a_verdict_on_its_running_trials(run, receive, status):
    set_status(run.worker.database, run.worker.study, status)

    verdict = PAUSED_BY_STUDY if status is Status.PAUSED else STOPPED_BY_STUDY
    assert RECEIVE[receive](run) == verdict


def test_stop_of_a_trial_takes_precedence_over_the_pause_of_its_study(database, study, run):
    set_status(database, study, Status.PAUSED)
    send(control.stop, study, database)

    assert run.report(0.5).verdict == STOPPED_BY_PERSON


def test_resumption_of_a_study_resumes_only_the_trials_that_were_paused_with_it(
    database, study, worker
):
    by_study, by_person = worker.take(), worker.take()
    send(control.pause, study, database, 1)
    by_person.finish(outcome=Reason.PREEMPTED)
    set_status(database, study, Status.PAUSED)
    by_study.finish(outcome=Reason.PREEMPTED)
    recover(database, study)
    during = states_of(database, study)

    set_status(database, study, Status.RUNNING)
    recover(database, study)

    assert during == [State.PAUSED, State.PAUSED]
    assert states_of(database, study) == [State.PENDING, State.PAUSED]
    assert read_progress(database, study).counts.pending == 1


@pytest.mark.parametrize("when", ["without a report", "after a report", "after its end"])
def test_trial_paused_by_a_person_in_a_paused_study_stays_paused_when_the_study_resumes(
    database, study, run, when
):
    set_status(database, study, Status.PAUSED)
    if when == "after a report":
        run.report(0.5)
    if when == "after its end":
        run.finish(outcome=Reason.PREEMPTED)
    send(control.pause, study, database)
    if when != "after its end":
        run.finish(outcome=Reason.PREEMPTED)

    set_status(database, study, Status.RUNNING)
    recover(database, study)

    assert run.trial().state is State.PAUSED


def test_trial_becomes_pending_if_its_study_is_resumed_before_its_pause_takes_effect(
    database, study, run
):
    set_status(database, study, Status.PAUSED)
    run.report(0.5)
    set_status(database, study, Status.RUNNING)
    run.finish(outcome=Reason.PREEMPTED)

    recover(database, study)

    assert run.trial().state is State.PENDING


def test_trials_of_a_stopped_study_can_be_claimed_once_it_is_resumed(database, study, worker):
    enqueued(database, study)
    set_status(database, study, Status.STOPPED)
    set_status(database, study, Status.RUNNING)

    assert worker.claim() is not None


# --- stop without a grace


def stop_now(database, study, *numbers):
    if numbers:
        control.stop(database, study, numbers, new_request(), now=True)
    else:
        control.set_status(database, study, Status.STOPPED, new_request(), now=True)


@pytest.mark.parametrize("numbers", [(), (0,)], ids=["study", "trial"])
def test_renewal_says_that_a_stop_is_immediate(database, study, run, numbers):
    stop_now(database, study, *numbers)

    assert renewed(run).at_once
    assert renewed(run).at_once  # every renewal says so until the attempt ends
    run.finish(outcome=Reason.PREEMPTED)
    assert rows(database, "SELECT request_now FROM trial") == [(None,)]


def test_later_stop_that_is_not_immediate_gives_the_trial_its_grace(database, study, run):
    stop_now(database, study, 0)

    send(control.stop, study, database)

    assert renewed(run) == STOPPED_BY_PERSON


def test_resuming_the_study_withdraws_its_immediate_stop(database, study, run):
    stop_now(database, study)
    assert renewed(run).at_once

    set_status(database, study, Status.RUNNING)
    assert renewed(run) is None
    set_status(database, study, Status.STOPPED)

    assert renewed(run) == STOPPED_BY_STUDY


@pytest.mark.parametrize("status", [Status.STOPPED, Status.PAUSED])
def test_later_request_to_the_study_withdraws_an_immediate_stop(database, study, run, status):
    stop_now(database, study)

    set_status(database, study, status)

    verdict = renewed(run)
    assert (verdict.by, verdict.at_once) == (DecidedBy.STUDY, False)
    assert not is_requested(database, held=[run.lease], worker_id=run.worker.id)


def test_resuming_the_study_does_not_withdraw_the_stop_of_a_single_trial(database, study, run):
    stop_now(database, study, 0)

    set_status(database, study, Status.RUNNING)

    assert renewed(run).at_once


def test_late_duplicate_of_a_stop_kills_no_trial_of_a_resumed_study(database, study, run):
    request = new_request()
    control.set_status(database, study, Status.STOPPED, request, now=True)
    set_status(database, study, Status.RUNNING)

    with unchanged_rows(database):
        control.set_status(database, study, Status.STOPPED, request, now=True)


def test_late_duplicate_of_a_stop_does_not_take_back_the_grace_of_a_later_stop(
    database, study, run
):
    request = new_request()
    control.set_status(database, study, Status.STOPPED, request, now=True)
    set_status(database, study, Status.STOPPED)

    control.set_status(database, study, Status.STOPPED, request, now=True)

    assert renewed(run) == STOPPED_BY_STUDY
