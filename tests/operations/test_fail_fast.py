"""
A study with `fail_fast` pauses itself at a failure, or at a loss that ends a trial.

Its running trials pause, too. After the study is resumed, the next failure pauses it again.
"""

from dataclasses import replace

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows, run_together

from studydb.domain.failures import Failure
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations import control
from studydb.operations.failing import describe_failure
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress

CAUSE = Failure("data.MissingFile", "no\nfile")
PAUSED = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)


def failing_fast(database, **overrides):
    return SimulatedWorker(database, new_study(database, fail_fast=True, **overrides))


@pytest.mark.row("A15")
def test_first_failure_pauses_the_study_and_running_trials(database):
    worker = failing_fast(database)
    first, other = worker.take(), worker.take()
    other.report(0.5)

    first.finish(outcome=Reason.FAILED, failure=CAUSE)

    progress = read_progress(database, worker.study)
    assert (progress.status, progress.is_done, progress.has_failed) == (Status.PAUSED, True, True)
    assert progress.pause_reason == "fail_fast is set, and trial 0 has failed: MissingFile: no file"
    assert list(worker.renew(other).held.values()) == [PAUSED]
    assert other.report(0.4).verdict == PAUSED
    assert other.finish(outcome=Reason.PREEMPTED).state is State.PAUSED
    assert worker.acquire() is None


@pytest.mark.row("A15")
def test_resumed_study_goes_on_until_the_next_failure(database):
    worker = failing_fast(database)
    first, other = worker.take(), worker.take()
    first.finish(outcome=Reason.FAILED, failure=CAUSE)
    other.finish(0.5, outcome=Reason.PREEMPTED)

    control.set_status(database, worker.study, Status.RUNNING, new_request())
    again = worker.take()
    resumed = read_progress(database, worker.study)
    again.finish(outcome=Reason.FAILED, failure=CAUSE)

    assert again.lease.number == other.lease.number
    assert (resumed.status, resumed.pause_reason) == (Status.RUNNING, None)
    assert read_progress(database, worker.study).status is Status.PAUSED


def test_failure_that_is_retried_pauses_the_study_too(database):
    worker = failing_fast(database, max_failures=-1)

    ending = worker.take().finish(outcome=Reason.FAILED, failure=CAUSE)

    assert ending.state is State.PENDING
    assert read_progress(database, worker.study).status is Status.PAUSED


@pytest.mark.parametrize(("max_losses", "status"), [(1, Status.RUNNING), (0, Status.PAUSED)])
def test_loss_pauses_the_study_only_if_it_ends_the_trial(database, max_losses, status):
    worker = failing_fast(database, max_losses=max_losses)

    worker.take().finish(outcome=Reason.LOST)

    assert read_progress(database, worker.study).status is status


def test_only_the_first_of_concurrent_failures_pauses_the_study(database):
    worker = failing_fast(database)
    runs = [worker.take() for _ in range(3)]

    run_together([lambda run=run: run.finish(outcome=Reason.FAILED, failure=CAUSE) for run in runs])

    assert rows(database, "SELECT count(*) FROM event WHERE actor = 'fail_fast'") == [(1,)]


def test_trial_lost_in_a_paused_study_becomes_paused(database):
    worker = failing_fast(database)
    first, other = worker.take(), worker.take()
    first.finish(outcome=Reason.FAILED, failure=CAUSE)

    other.finish(outcome=Reason.LOST)
    recover(database, worker.study)

    assert other.trial().state is State.PAUSED


def test_explanation_of_the_pause_does_not_offer_the_option_no_guard(database):
    worker = failing_fast(database)
    worker.take().finish(outcome=Reason.FAILED, failure=CAUSE)

    text = describe_failure(database, worker.study, read_progress(database, worker.study))

    assert "has paused itself: fail_fast is set, and trial 0 has failed: MissingFile" in text
    assert "--no-guard" not in text


@pytest.mark.parametrize("kind", TrainableKind)
def test_explanation_asks_for_new_code_first_if_the_study_keeps_a_copy_of_the_code(database, kind):
    worker = failing_fast(database)
    worker.take().finish(outcome=Reason.FAILED, failure=CAUSE)
    study = replace(worker.study, trainable=Trainable("", kind, "train", "/", "3.11"))

    text = describe_failure(database, study, read_progress(database, study))

    keeps_copy = kind in (TrainableKind.PICKLE, TrainableKind.BOUND)
    assert ("replace the copy by `study.set(trainable=train)`, then" in text) is keeps_copy
    assert ("Correct the cause, then `studydb resume" in text) is not keeps_copy
    assert f"then `studydb resume {study.name}`." in text
