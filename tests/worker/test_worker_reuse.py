"""When one process runs several trials of a class, when it must not, and how it ends."""

import signal
import time
from uuid import uuid4

import pytest
from fleet.workers import eventually
from harness.arrange import new_request, rows, states_of
from harness.supervised_slot import (
    COMPLETED,
    GOOD,
    GRACE_S,
    ReusedChild,
    Supervised,
    reported,
    wire,
)
from harness.turns import sqlite_alone

import studydb
from studydb.child.messages import Began, End, Ended
from studydb.db.schema import worker as worker_table
from studydb.domain.failures import Failure
from studydb.domain.life.states import State
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations.drain import drain, find_worker
from studydb.worker.interruption import Interruption

storage_url = sqlite_alone

X = studydb.randint(0, 1_000_000)


def calls(stage, *, of=("setup", "reset", "refused", "cleanup")):
    lines = (stage.folder / "calls").read_text().splitlines()
    return [line for line in lines if line in of]


def starts(stage, number):
    return [one.start for one in stage.attempts(number)]


def enqueue(stage, *values, **more):
    """Create a study, and enqueue a trial for each value of `x`, in the order of the values."""
    trainable = more.pop("trainable", "classes:Reused")
    space = {"x": X, **more.pop("space", {})}
    stage.create(trainable, num_trials=more.pop("num_trials", len(values)), space=space, **more)
    for value in values:
        stage.study.enqueue({"x": value})


def waiting_child(worker):
    """Return the process that a worker keeps for another trial; call this after a trial's end."""
    return eventually(lambda: next(iter(worker.children()), None), what="a process that waits")


@pytest.mark.row("D6")
def test_trials_of_a_class_with_reset_config_run_in_one_process(stage):
    stage.create("classes:Reused", num_trials=3)

    assert stage.run() == 0

    assert calls(stage) == ["setup", "reset", "reset", "cleanup"]
    assert len(set((stage.folder / "pids").read_text().split())) == 1
    assert [starts(stage, number) for number in range(3)] == [["warm"], ["reused"], ["reused"]]
    assert [stage.steps(number) for number in range(3)] == [[1, 2, 3, 4]] * 3
    assert "reused" in stage.command("show", "staged", "1")


@pytest.mark.slow
def test_two_slots_use_at_most_two_processes(stage):
    stage.create("classes:Reused", num_trials=8)

    assert stage.run(slots=2) == 0

    assert calls(stage, of=("setup", "cleanup")).count("setup") <= 2
    assert calls(stage).count("setup") == calls(stage).count("cleanup")


@pytest.mark.nightly
def test_worker_with_start_fresh_reuses_no_process(stage):
    stage.create("classes:Reused", num_trials=2)

    assert stage.run(start="fresh") == 0

    assert calls(stage) == ["setup", "cleanup"] * 2


@pytest.mark.nightly
def test_trial_that_reset_config_refuses_runs_in_a_new_process(stage):
    stage.create("classes:Refusing", num_trials=2)

    assert stage.run() == 0

    end = "cleanup after step 4"
    assert calls(stage, of=("setup", "refused", end)) == ["setup", "refused", end, "setup", end]
    assert [starts(stage, number) for number in range(2)] == [["warm"], ["warm"]]
    assert stage.trial(1).losses == stage.trial(1).failures == 0
    log = stage.command("logs", "staged", "1")
    assert log.index("cannot be reset") < log.index("set up")


# faults


@pytest.mark.nightly
def test_kill_of_a_waiting_process_does_not_harm_the_next_trial(stage):
    _, waiting = waiting_worker(stage)

    waiting.kill()
    stage.study.extend(num_trials=1)
    second = stage.await_state("TERMINATED", 1)

    assert (second.reason, second.attempt, second.losses) == ("COMPLETED", 1, 0)
    assert starts(stage, 1) == ["warm"]
    assert stage.steps(1) == [1, 2, 3, 4]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_trial_after_a_fault_gets_a_new_process_and_no_other_trial_is_harmed(stage, fault):
    enqueue(stage, 0, 1, 2, trainable="classes:Faulty", space={"fault": fault}, max_failures=1)

    assert stage.run() == 0

    faulty = stage.attempts(1)
    assert [*starts(stage, 0), faulty[0].start] == ["warm", "reused"]
    assert sorted([faulty[1].start, *starts(stage, 2)]) == ["reused", "warm"]  # in either order
    assert faulty[0].reason == ("FAILED" if fault == "raise" else "LOST")
    assert [stage.trial(number).reason for number in range(3)] == ["COMPLETED"] * 3
    assert [len(stage.attempts(number)) for number in range(3)] == [1, 2, 1]
    assert [stage.steps(number) for number in range(3)] == [[1, 2, 3, 4]] * 3


# how a waiting or reused process ends


def waiting_worker(stage, **options):
    """Run a study's only trial; return the worker and the process that waits for another trial."""
    stage.create("classes:Reused", num_trials=1)
    worker = stage.start(wait=True, **options)
    stage.await_state("TERMINATED")
    return worker, waiting_child(worker)


@pytest.mark.nightly
def test_waiting_process_is_replaced_if_the_study_gets_other_code(stage):
    _, waiting = waiting_worker(stage)

    stage.study.set(trainable="classes:InFiles", workdir=stage.study.record.trainable.workdir)
    stage.study.extend(num_trials=1)
    stage.await_state("TERMINATED", 1)

    assert starts(stage, 1) == ["warm"]
    assert calls(stage)[:3] == ["setup", "cleanup", "setup"]
    assert not waiting.is_running()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["SIGTERM", "drain"])
def test_process_that_waits_cleans_up_and_ends_with_its_worker(stage, how):
    worker, waiting = waiting_worker(stage)

    if how == "drain":
        uuid = stage.row(worker_table).uuid
        drain(stage.study.database, find_worker(stage.study.database, uuid), new_request())
    else:
        worker.send(signal.SIGTERM)

    assert worker.exit_code() == (0 if how == "drain" else 143)
    assert not waiting.is_running()
    assert calls(stage) == ["setup", "cleanup"]
    assert stage.trial().reason == "COMPLETED"


@pytest.mark.nightly
def test_process_that_waits_ends_within_2_s_after_its_worker_was_killed(stage):
    worker, _ = waiting_worker(stage)

    worker.kill()

    eventually(lambda: not worker.family(), 2.0)


@pytest.mark.nightly
def test_process_that_has_waited_too_long_cleans_up_and_ends(stage):
    worker, waiting = waiting_worker(stage, constants={"worker.slot_processes.IDLE_S": 0.5})

    eventually(lambda: not waiting.is_running(), 10.0)

    assert calls(stage) == ["setup", "cleanup"]
    assert worker.runs


@pytest.mark.nightly
def test_sigterm_and_grace_end_a_trial_in_a_reused_process(stage):
    enqueue(stage, 0, 1, trainable="classes:Patient")
    worker = stage.start(grace=0.5)
    eventually((stage.folder / "second").exists)

    began_s = time.monotonic()
    worker.send(signal.SIGTERM)

    assert worker.exit_code() == 143
    assert 0.4 < time.monotonic() - began_s < 5
    stage.expect_released(1)
    assert starts(stage, 1) == ["reused"]


# scripted children, which may send wrong messages

KEPT = wire(Ended(End.COMPLETED, kept=True))
BEGAN = wire(Began(0.0))
NOT_REUSED = wire(Ended(End.NOT_REUSED))
FAILED_AND_KEPT = wire(Ended(End.FAILED, Failure("ValueError", "", ""), kept=True))


def attempts(database):
    """Read how each attempt was started and how it ended, in the order of the trials."""
    return rows(database, "SELECT start, reason FROM attempt ORDER BY trial_id, attempt")


def values(database):
    return rows(database, "SELECT number, value FROM v_result ORDER BY number, step")


def test_what_a_process_sends_after_the_end_of_a_trial_counts_for_no_trial(supervised, database):
    child = ReusedChild(reported() + KEPT + reported(2, 99.0), reported(1, 0.25) + COMPLETED)

    assert supervised.run(child, trials=2).gave_up is None

    assert values(database) == [(0, 0.5), (1, 0.25)]
    assert attempts(database) == [("fresh", "COMPLETED"), ("reused", "COMPLETED")]


def test_trial_whose_process_ends_before_its_function_begins_runs_in_another_process(
    supervised, database
):
    child = ReusedChild(reported() + KEPT, b"")

    assert supervised.run(child, GOOD, trials=2).gave_up is None

    assert attempts(database) == [("fresh", "COMPLETED"), ("fresh", "COMPLETED")]
    assert rows(database, "SELECT losses FROM trial") == [(0,), (0,)]


def test_trial_that_reports_before_its_function_begins_and_dies_is_lost(supervised, database):
    child = ReusedChild(reported() + KEPT, reported(1, 0.25))

    assert supervised.run(child, GOOD, trials=3).gave_up is None

    assert attempts(database) == [
        ("fresh", "COMPLETED"),
        ("reused", "LOST"),
        ("fresh", "COMPLETED"),
    ]


def test_only_the_trial_that_runs_is_lost_if_a_reused_process_dies(supervised, database):
    child = ReusedChild(reported() + KEPT, BEGAN)

    assert supervised.run(child, GOOD, trials=3).gave_up is None

    assert attempts(database) == [
        ("fresh", "COMPLETED"),
        ("reused", "LOST"),
        ("fresh", "COMPLETED"),
    ]


@pytest.mark.parametrize("process", ["new", "that has reported"])
def test_trial_fails_if_a_process_that_is_new_or_has_reported_declines_the_trial(
    supervised, database, process
):
    is_new = process == "new"
    child = NOT_REUSED if is_new else ReusedChild(reported() + KEPT, reported() + NOT_REUSED)

    assert supervised.run(child, GOOD, trials=2 + (not is_new)).gave_up is None

    expected = [State.ERROR, State.TERMINATED]
    assert states_of(database, supervised.study) == [State.TERMINATED] * (not is_new) + expected


def test_process_of_a_failed_trial_is_not_reused_even_if_it_offers_to_run_another(
    supervised, database
):
    child = ReusedChild(reported() + FAILED_AND_KEPT, reported() + COMPLETED)

    assert supervised.run(child, GOOD, trials=2).gave_up is None

    assert attempts(database) == [("fresh", "FAILED"), ("fresh", "COMPLETED")]


@pytest.mark.parametrize("why", ["--start fresh", "command"])
def test_process_of_a_fresh_start_or_a_command_is_not_reused_even_if_it_offers_to(
    database, tmp_path, why
):
    code = Trainable(str(uuid4()), TrainableKind.COMMAND, '["true"]', str(tmp_path), "3.11")
    supervised = Supervised(database, tmp_path, **({"trainable": code} if why == "command" else {}))
    child = ReusedChild(reported() + KEPT, reported() + COMPLETED)

    try:
        ended = supervised.run(child, GOOD, trials=2, warm_starts=why == "command")
    finally:
        supervised.close()

    assert ended.gave_up is None
    assert attempts(database) == [("fresh", "COMPLETED")] * 2


class Lingering(ReusedChild):
    """
    A child that does not end when told to.

    Attributes:
        cleanups: One entry, made when the worker first waits for the child's end with a timeout:
            this timeout in seconds, and the row of `attempts` for the last attempt.
    """

    def __init__(self, interruption, database):
        self._interruption, self._database = interruption, database
        self.cleanups = []
        super().__init__(reported() + KEPT, reported() + KEPT)

    def take(self, *arguments, **descriptors):
        self._interruption.drain()
        self._interruption.since_s -= GRACE_S - 0.5
        super().take(*arguments, **descriptors)

    def terminate(self):
        """Do not end: the child uses its grace."""

    def wait(self, timeout_s=None):
        if timeout_s is not None and not self.cleanups:
            self.cleanups.append((timeout_s, attempts(self._database)[-1]))
        return super().wait(timeout_s)


def test_end_of_a_trial_is_stored_before_the_cleanup_which_gets_the_remaining_grace(
    supervised, database
):
    interruption = Interruption()
    child = Lingering(interruption, database)

    supervised.run(child, trials=2, interruption=interruption)

    ((timeout_s, stored),) = child.cleanups
    assert stored == ("reused", "COMPLETED")
    assert 0 < timeout_s <= 0.5


def test_process_of_a_trial_whose_lease_was_lost_is_not_used_again(
    supervised, database, monkeypatch
):
    def lose(held, *_arguments, **_more):
        monkeypatch.undo()
        raise studydb.LeaseLost(number=0, attempt=1)

    monkeypatch.setattr("studydb.lease.held.HeldAttempt.end", lose)
    child = ReusedChild(reported() + KEPT, reported() + COMPLETED)

    assert supervised.run(child, GOOD, trials=2).gave_up is None

    assert attempts(database)[-1] == ("fresh", "COMPLETED")
