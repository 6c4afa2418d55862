"""
A pause waits for the trial's next report; a stop, a drain and SIGTERM wait at most `--grace`.

An invalidation waits as long as a stop. `study.stop(now=True)` does not wait.
"""

import signal
import time

import pytest
from fleet.workers import eventually
from harness.arrange import new_request
from harness.turns import sqlite_alone

from studydb.db.schema import worker as worker_table
from studydb.operations.drain import drain, find_worker

storage_url = sqlite_alone

GRACE_S = 1.0


@pytest.fixture
def worker(stage):
    """A worker whose trial is in a step that ends when the test opens the step's gate."""
    stage.create("obedient:slow")
    worker = stage.start(grace=GRACE_S)
    eventually((stage.folder / "began-1").exists)
    return worker


def outlast_grace(stage, condition=lambda row: row.verdict is not None):
    """Wait until a renewal has read the request, and then for twice the grace."""
    stage.await_trial(condition)
    time.sleep(2 * GRACE_S)


@pytest.mark.nightly
def test_pause_waits_for_the_end_of_a_step_that_is_longer_than_the_grace(stage, worker):
    stage.study.pause(0)
    outlast_grace(stage)
    still_runs = stage.trial().state
    stage.open_gate(1)

    paused = stage.await_state("PAUSED")

    assert still_runs == "RUNNING"
    assert (paused.n_results, paused.checkpoint_step, paused.losses) == (1, 1, 0)
    assert [one.reason for one in stage.attempts()] == ["PAUSED"]


@pytest.mark.nightly
def test_pause_withdrawn_within_a_step_does_not_interrupt_the_attempt(stage, worker):
    stage.study.pause(0)
    outlast_grace(stage)
    stage.study.resume(0)
    outlast_grace(stage, lambda row: row.verdict is None)
    stage.open_gate("all")

    done = stage.await_state("TERMINATED")

    assert (done.reason, done.attempt) == ("COMPLETED", 1)
    assert stage.steps() == [1, 2]
    assert worker.exit_code() == 0


@pytest.mark.nightly
@pytest.mark.row("C5")
def test_stop_kills_a_trial_in_a_step_that_is_longer_than_the_grace(stage, worker):
    stage.study.stop(0)

    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.fixture
def patient(stage):
    """A worker whose grace is longer than the test."""
    stage.create("obedient:slow")
    worker = stage.start(grace=600)
    eventually((stage.folder / "began-1").exists)
    return worker


@pytest.mark.slow
@pytest.mark.row("A12")
@pytest.mark.parametrize("numbers", [(), (0,)], ids=["study", "trial"])
def test_stop_now_kills_a_trial_without_waiting_for_the_grace(stage, patient, numbers):
    stage.study.stop(*numbers, now=True)

    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.mark.nightly
def test_stop_now_ends_the_grace_of_an_earlier_stop(stage, patient):
    stage.study.stop(0)
    stage.await_trial(lambda row: row.verdict is not None)
    stage.study.stop(0, now=True)

    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.mark.slow
def test_invalidated_trial_is_killed_after_the_grace(stage, worker):
    stage.study.invalidate(0, reason="wrong labels")

    assert stage.await_state("TERMINATED").reason == "INVALIDATED"


@pytest.mark.nightly
def test_stop_after_a_pause_request_kills_the_trial(stage, worker):
    stage.study.pause(0)
    outlast_grace(stage)
    stage.study.stop(0)

    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.mark.slow
@pytest.mark.row("D8")
@pytest.mark.parametrize("request_", ["SIGTERM", "drain"])
def test_sigterm_and_drain_kill_a_trial_in_a_step_longer_than_the_grace(stage, worker, request_):
    if request_ == "SIGTERM":
        worker.send(signal.SIGTERM)
    else:
        database = stage.study.database
        drain(database, find_worker(database, stage.row(worker_table).uuid), new_request())

    assert worker.exit_code() == (143 if request_ == "SIGTERM" else 0)
    stage.expect_released()


@pytest.mark.nightly
def test_sigterm_after_a_pause_request_kills_the_trial_and_leaves_it_paused(stage, worker):
    stage.study.pause(0)
    outlast_grace(stage)
    worker.send(signal.SIGTERM)

    assert worker.exit_code() == 143
    assert (stage.trial().state, stage.trial().losses) == ("PAUSED", 0)


def test_negative_grace_is_refused(sqlite_stage):
    sqlite_stage.create("obedient:one_step")
    worker = sqlite_stage.start(grace=-1)

    assert worker.exit_code() == 2
    assert "--grace" in worker.output()
