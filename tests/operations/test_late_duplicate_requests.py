"""
A duplicate request that arrives late, after other operations, changes nothing.

A duplicate claim gets the trial of the first claim, or None if the first claim's attempt has ended.
"""

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    recover_after_expiry,
    unchanged_rows,
)

from studydb.domain.life.states import Reason, Status
from studydb.operations import control
from studydb.operations.ask import ask
from studydb.operations.claim import claim


@pytest.fixture
def study(database, clock):
    return new_study(database, num_trials=4)


def lose(clock, run):
    recover_after_expiry(clock, run.worker.database, run.worker.study)


def complete(_, run):
    run.finish()


def release(_, run):
    run.finish(outcome=Reason.PREEMPTED)


def send_again(run, operation):
    worker, lease = run.worker, run.lease
    return operation(worker.database, worker.study, worker.claimant(lease.token))


@pytest.mark.parametrize("operation", [claim, ask])
@pytest.mark.parametrize("end", [lose, complete, release])
def test_duplicate_claim_of_an_ended_attempt_gives_nothing(database, clock, worker, end, operation):
    run = worker.take()
    end(clock, run)

    with unchanged_rows(database):
        assert send_again(run, operation) is None


@pytest.mark.parametrize("operation", [claim, ask])
@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
def test_duplicate_claim_is_answered_in_a_paused_or_stopped_study(
    database, study, worker, status, operation
):
    enqueued(database, study)
    run = worker.take()
    control.set_status(database, study, status, new_request())

    assert send_again(run, operation) == run.claimed


@pytest.mark.parametrize("operation", [claim, ask])
def test_duplicate_claim_is_answered_while_max_concurrent_trials_run(database, clock, operation):
    study = new_study(database, max_concurrent=1)
    for _ in range(2):
        enqueued(database, study)
    run = SimulatedWorker(database, study).take()

    with unchanged_rows(database):
        assert send_again(run, operation) == run.claimed


def test_duplicate_stop_of_an_ended_trial_changes_nothing(database, study, run):
    request = new_request()
    control.stop(database, study, [0], request)
    run.finish(outcome=Reason.PREEMPTED)

    with unchanged_rows(database):
        control.stop(database, study, [0], request)
