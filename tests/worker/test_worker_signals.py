"""Workers that get signals or are killed, and workers during an outage of the database."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from fleet.workers import eventually
from harness.arrange import new_request, rows

from studydb.domain.life.decisions import Action
from studydb.operations.drain import drain, find_worker
from studydb.processes import SIGNAL_SPREAD_S, pid_namespace
from studydb.settings import PARENT

OUTAGE_S = 3.0
CODES = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_worker_with_closed_standard_streams_runs_its_trials(sqlite_stage, closed):
    """The worker opens /dev/null for a closed stream, so no socket gets the stream's number."""
    sqlite_stage.create("obedient:gated")
    sqlite_stage.open_gate("all")
    command = shlex.join(
        [sys.executable, "-m", "studydb", "worker", "--study", sqlite_stage.study.name]
    )
    worker = sqlite_stage.fleet.launch(["sh", "-c", f"exec {command} {closed}"])

    assert worker.exit_code() == 0
    assert [one.reason for one in sqlite_stage.attempts()] == ["COMPLETED"]


@pytest.mark.slow
@pytest.mark.row("A11")
@pytest.mark.parametrize(("number", "code"), CODES)
def test_signalled_worker_releases_its_trial_without_counting_a_failure(sqlite_stage, number, code):
    stage = sqlite_stage
    stage.create("obedient:unhurried")
    worker = stage.start()
    stage.await_result()

    worker.send(number)

    assert worker.exit_code() == code
    line = (
        f"ended by {number.name}; trials that ran here are released, and any worker continues them"
    )
    assert worker.output().count(line) == 1
    assert "(will run again)" in worker.output()
    assert "Traceback" not in worker.output()
    released = stage.expect_released()
    assert released.checkpoint_step > 0

    stage.open_gate("all")
    assert stage.run() == 0
    assert stage.trial().reason == "COMPLETED"
    assert [one.reason for one in stage.attempts()] == ["PREEMPTED", "COMPLETED"]
    assert stage.attempts()[1].start_step == released.checkpoint_step + 1
    assert stage.steps() == list(range(1, stage.trial().last_step + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), CODES)
def test_signal_to_all_processes_of_a_worker_counts_no_failure(sqlite_stage, number, code):
    sqlite_stage.create("obedient:unhurried")
    worker = sqlite_stage.start()
    sqlite_stage.await_result()

    for process in [*worker.children(), worker.fork_server()]:
        process.send_signal(number)
    worker.send(number)

    assert worker.exit_code() == code
    assert sqlite_stage.expect_released().checkpoint_step > 0


@pytest.mark.slow
def test_no_failure_is_counted_if_the_signal_to_the_worker_ends_a_process_that_the_trial_needs(
    sqlite_stage,
):
    sqlite_stage.create("obedient:needs_a_helper")
    worker = sqlite_stage.start()
    helper = int(eventually(lambda: text_of(sqlite_stage.folder / "helper")))

    worker.send(signal.SIGTERM)
    eventually(lambda: "waiting up to" in worker.output())
    os.kill(helper, signal.SIGTERM)

    assert worker.exit_code() == 128 + signal.SIGTERM
    sqlite_stage.expect_released()
    assert [one.reason for one in sqlite_stage.attempts()] == ["PREEMPTED"]


def test_trial_that_ignores_sigterm_and_ends_while_its_worker_stops_is_completed(sqlite_stage):
    sqlite_stage.create("obedient:handles_sigterm", space={"at_sigterm": "ignore"})
    worker = sqlite_stage.start(grace=20)
    sqlite_stage.await_result()

    worker.send(signal.SIGTERM)
    eventually(lambda: "waiting up to" in worker.output())
    sqlite_stage.open_gate("all")

    assert worker.exit_code() == 143
    assert [one.reason for one in sqlite_stage.attempts()] == ["COMPLETED"]


@pytest.mark.parametrize("is_drained", [False, True])
@pytest.mark.parametrize("at_sigterm", ["return", "exit", "report"])
def test_trial_that_handles_sigterm_itself_is_released_when_its_worker_stops(
    sqlite_stage, at_sigterm, is_drained
):
    sqlite_stage.create("obedient:handles_sigterm", space={"at_sigterm": at_sigterm})
    worker = sqlite_stage.start(grace=20)
    sqlite_stage.await_result()

    if is_drained:
        database = sqlite_stage.study.database
        ((uuid,),) = rows(database, "SELECT worker FROM v_worker")
        drain(database, find_worker(database, uuid), new_request())
    else:
        worker.send(signal.SIGTERM)

    assert worker.exit_code() == (0 if is_drained else 143)
    released = sqlite_stage.expect_released()
    assert bool(released.checkpoint_step) == (at_sigterm == "report")
    assert [one.reason for one in sqlite_stage.attempts()] == ["PREEMPTED"]


def test_completed_trial_that_handles_sigterm_itself_stays_completed(sqlite_stage):
    sqlite_stage.create("obedient:handles_sigterm", space={"at_sigterm": "return"})
    worker = sqlite_stage.start()
    sqlite_stage.await_result()

    for process in worker.children():
        process.send_signal(signal.SIGTERM)

    assert worker.exit_code() == 0
    assert [one.reason for one in sqlite_stage.attempts()] == ["COMPLETED"]


def text_of(path):
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_no_loss_is_counted_if_the_same_signal_ends_child_and_worker(sqlite_stage):
    sqlite_stage.create("obedient:resets_signal_handlers")
    worker = sqlite_stage.start()
    eventually((sqlite_stage.folder / "ready").exists)

    for process in worker.children():
        process.send_signal(signal.SIGHUP)
    worker.send(signal.SIGHUP)

    assert worker.exit_code() == 129
    sqlite_stage.expect_released()


@pytest.mark.slow
def test_repeated_sighup_does_not_count_as_a_second_signal(sqlite_stage):
    sqlite_stage.create("obedient:slow")
    worker = sqlite_stage.start()
    eventually((sqlite_stage.folder / "began-1").exists)

    worker.send(signal.SIGHUP)
    time.sleep(SIGNAL_SPREAD_S + 0.2)
    worker.send(signal.SIGHUP)
    sqlite_stage.open_gate("all")

    assert worker.exit_code() == 129
    assert sqlite_stage.expect_released().checkpoint_step == 1


@pytest.mark.slow
def test_worker_ends_if_the_process_of_study_run_has_died_before_the_worker_was_ready(sqlite_stage):
    sqlite_stage.create("obedient:unhurried")
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-m", "studydb", "worker", "--study", sqlite_stage.study.name]

    parent = f"{dead.pid}@{pid_namespace()}"
    worker = sqlite_stage.fleet.launch(["env", f"{PARENT}={parent}", *command])

    assert worker.exit_code() == 143
    assert sqlite_stage.study.trials == []


@pytest.mark.slow
def test_worker_in_another_namespace_of_pids_does_not_look_for_the_process_of_study_run(
    sqlite_stage,
):
    sqlite_stage.create("obedient:unhurried")
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-m", "studydb", "worker", "--study", sqlite_stage.study.name]

    sqlite_stage.fleet.launch(["env", f"{PARENT}={dead.pid}@pid:[1]", *command])

    sqlite_stage.await_result()


@pytest.mark.nightly
def test_worker_under_nohup_ignores_sighup(sqlite_stage):
    sqlite_stage.create("obedient:unhurried")
    worker = sqlite_stage.fleet.launch(
        ["nohup", sys.executable, "-m", "studydb", "worker", "--study", sqlite_stage.study.name]
    )
    sqlite_stage.await_result()

    worker.send(signal.SIGHUP)
    sqlite_stage.open_gate("all")

    assert worker.exit_code() == 0
    assert sqlite_stage.trial().reason == "COMPLETED"


@pytest.mark.slow
def test_worker_prints_that_a_second_signal_kills_its_trials_and_the_signal_kills_them(
    sqlite_stage,
):
    sqlite_stage.create("obedient:ignores_sigterm")
    worker = sqlite_stage.start()
    eventually((sqlite_stage.folder / "ready").exists)

    worker.send(signal.SIGTERM)
    time.sleep(SIGNAL_SPREAD_S + 0.2)
    line = "waiting up to 30 s for the running trials to save and end; a second SIGTERM kills them"
    eventually(lambda: line in worker.output())
    worker.send(signal.SIGINT)

    assert worker.exit_code(10.0) == 130


@pytest.mark.slow
def test_signals_that_arrive_together_count_as_one(sqlite_stage):
    """A service manager may signal both the worker's process and the process group."""
    sqlite_stage.create("obedient:unhurried")
    worker = sqlite_stage.start()
    sqlite_stage.await_result()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        worker.send(number)

    assert worker.exit_code() in {130, 143}
    sqlite_stage.expect_released()


@pytest.mark.nightly
def test_next_worker_on_the_host_immediately_runs_the_trial_of_a_killed_worker(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:gated")
    first = stage.start(lease=90.0)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    first.kill()
    stage.open_gate("all")

    assert stage.run(lease=90.0) == 0
    assert stage.trial().reason == "COMPLETED"
    assert [one.reason for one in stage.attempts()] == ["LOST", "COMPLETED"]


@pytest.mark.nightly
@pytest.mark.parametrize("action", [Action.STOP, Action.PAUSE])
def test_stop_and_pause_requests_reach_a_running_trial(sqlite_stage, action):
    study = sqlite_stage.create("obedient:unhurried", num_trials=10_000)
    worker = sqlite_stage.start(max_trials=1)
    sqlite_stage.await_result()

    (study.stop if action is Action.STOP else study.pause)(0)

    state = "TERMINATED" if action is Action.STOP else "PAUSED"
    ended = sqlite_stage.await_state(state)
    assert worker.exit_code() == 0
    assert sqlite_stage.steps() == list(range(1, ended.last_step + 1))


@pytest.mark.slow
def test_worker_survives_an_outage_without_losing_a_result(crashable_server, crashable_stage):
    crashable_stage.create("obedient:hundred_steps", space={"step_s": 0.05})
    worker = crashable_stage.start()
    crashable_stage.await_result()
    until_s = time.monotonic() + OUTAGE_S

    crashable_server.stop("immediate")
    eventually(lambda: "waiting" in worker.output() or time.monotonic() > until_s)
    crashable_server.start()
    crashable_stage.study.database.close()  # the test's connections died with the server

    assert worker.exit_code(60.0) == 0, worker.output()
    assert (
        worker.output().count("training continues without the database, results are buffered") == 1
    )
    assert worker.output().count("the database answers again") == 1
    assert crashable_stage.trial().attempt == 1
    assert crashable_stage.steps() == list(range(1, 101))


def waiting_in_an_outage(server, stage, grace):
    """Stop the server, and return the worker once its trial waits to store a checkpoint."""
    stage.create("obedient:gated", num_trials=1)
    worker = stage.start(grace=grace)
    stage.await_trial(lambda row: row.checkpoint_step == 1)
    server.stop("immediate")
    stage.open_gate(1)
    eventually(lambda: "a trial waits to store its results" in worker.output(), 20.0)
    return worker


@pytest.mark.nightly
def test_worker_that_gets_sigterm_in_an_outage_stores_the_results_if_the_server_comes_back(
    crashable_server, crashable_stage
):
    worker = waiting_in_an_outage(crashable_server, crashable_stage, grace=60)

    worker.send(signal.SIGTERM)
    crashable_server.start()
    crashable_stage.study.database.close()  # the test's connections died with the server
    eventually(lambda: "the database answers again" in worker.output(), 20.0)
    crashable_stage.open_gate("all")  # the report of step 2 or of step 3 raises TrialStopped

    assert worker.exit_code(60.0) == 143
    assert crashable_stage.expect_released().checkpoint_step in (2, 3)


@pytest.mark.slow
def test_worker_in_an_outage_waits_after_sigterm_for_a_third_of_the_grace_and_says_what_becomes_of_trials(
    crashable_server, crashable_stage
):
    worker = waiting_in_an_outage(crashable_server, crashable_stage, grace=21)
    began_s = time.monotonic()

    worker.send(signal.SIGTERM)

    assert worker.exit_code(60.0) == 143
    assert 7 <= time.monotonic() - began_s < 21
    assert "did not answer for a third of the grace after SIGTERM" in worker.output()
    assert "go on from their last checkpoint" in worker.output()
    crashable_server.start()


@pytest.mark.slow
def test_idle_worker_prints_one_line_when_an_outage_begins_and_one_when_it_ends(
    crashable_server, crashable_stage
):
    crashable_stage.create("obedient:one_step")
    crashable_stage.study.pause()
    worker = crashable_stage.start()
    eventually(lambda: "is paused; waiting" in worker.output())

    crashable_server.stop("immediate")
    eventually(lambda: "waiting for the database: " in worker.output())
    crashable_server.start()
    eventually(lambda: "the database answers again" in worker.output())
    crashable_stage.study.database.close()  # the test's connections died with the server
    crashable_stage.study.resume()

    assert worker.exit_code(60.0) == 0, worker.output()
    assert worker.output().count("waiting for the database: ") == 1
    assert worker.output().count("the database answers again") == 1


@pytest.mark.nightly
def test_worker_ends_after_its_patience_in_an_outage(crashable_server, crashable_stage):
    crashable_stage.create("obedient:one_step", num_trials=10_000)
    worker = crashable_stage.start(patience=1.0)
    crashable_stage.await_trial(lambda row: row.state == "TERMINATED")

    crashable_server.stop("immediate")

    assert worker.exit_code(40.0) == 1
    assert "did not answer for too long" in worker.output()
    crashable_server.start()
