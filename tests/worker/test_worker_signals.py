"""Workers that get signals or are killed, and workers without a database."""

import signal
import sys
import time

import pytest
from fleet.stage import Stage
from fleet.workers import eventually

from studydb.db import migrate
from studydb.domain.life.decisions import Action

OUTAGE_S = 3.0


CODES = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), CODES)
def test_signalled_worker_releases_its_trial_without_counting_a_failure(stage, number, code):
    stage.create("obedient:unhurried")
    worker = stage.start()
    stage.await_trial(lambda row: row.n_results > 0)

    worker.send(number)

    assert worker.exit_code() == code
    told = f"trials released because of {number.name}; start a worker again to continue them"
    assert worker.output().count(told) == 1
    assert "(will run again)" in worker.output()
    assert "Traceback" not in worker.output()
    given_back = stage.trial()
    assert (given_back.state, given_back.failures, given_back.losses) == ("PENDING", 0, 0)
    assert given_back.checkpoint_step > 0

    stage.open("all")
    assert stage.run() == 0
    assert stage.trial().reason == "COMPLETED"
    assert [one.reason for one in stage.attempts()] == ["PREEMPTED", "COMPLETED"]
    assert stage.attempts()[1].start_step == given_back.checkpoint_step + 1
    assert stage.steps() == list(range(1, stage.trial().last_step + 1))


@pytest.mark.parametrize(("number", "code"), CODES)
def test_signal_to_all_processes_of_a_worker_counts_no_failure(sqlite_stage, number, code):
    stage = sqlite_stage
    stage.create("obedient:unhurried")
    worker = stage.start()
    stage.await_trial(lambda row: row.n_results > 0)

    for process in [*worker.children(), worker.fork_server()]:
        process.send_signal(number)
    worker.send(number)

    assert worker.exit_code() == code
    given_back = stage.trial()
    assert (given_back.state, given_back.failures, given_back.losses) == ("PENDING", 0, 0)
    assert given_back.checkpoint_step > 0


def test_child_killed_by_the_signal_that_ends_its_worker_counts_no_loss(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:deaf")
    worker = stage.start()
    eventually((stage.folder / "deaf-0").exists)

    for process in worker.children():
        process.send_signal(signal.SIGHUP)
    worker.send(signal.SIGHUP)

    assert worker.exit_code() == 129
    given_back = stage.trial()
    assert (given_back.state, given_back.failures, given_back.losses) == ("PENDING", 0, 0)


def test_repeated_sighup_does_not_count_as_a_second_signal(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:unhurried")
    worker = stage.start()
    stage.await_trial(lambda row: row.n_results > 0)

    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        worker.send(number)

    assert worker.exit_code() in {129, 143}
    assert stage.trial().losses == 0
    assert stage.trial().checkpoint_step > 0


def test_worker_under_nohup_ignores_sighup(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:unhurried")
    worker = stage.fleet.launch(
        ["nohup", sys.executable, "-m", "studydb", "worker", "--study", stage.study.name]
    )
    stage.await_trial(lambda row: row.n_results > 0)

    worker.send(signal.SIGHUP)
    stage.open("all")

    assert worker.exit_code() == 0
    assert stage.trial().reason == "COMPLETED"


def test_second_signal_ends_a_worker_immediately(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:stubborn")
    worker = stage.start()
    eventually((stage.folder / "stubborn-0").exists)

    worker.send(signal.SIGTERM)
    worker.send(signal.SIGINT)  # two of a kind might arrive as one

    assert worker.exit_code(10.0) in {130, 143}


def test_next_worker_on_the_host_runs_a_dead_workers_trial_immediately(stage):
    stage.create("obedient:gated")
    first = stage.start(lease=90.0)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    first.kill()
    stage.open("all")
    for step in range(1, 5):
        stage.open(step)

    assert stage.start(lease=90.0).exit_code(30.0) == 0
    assert stage.trial().reason == "COMPLETED"
    assert [one.reason for one in stage.attempts()] == ["LOST", "COMPLETED"]


@pytest.mark.parametrize("action", [Action.STOP, Action.PAUSE])
def test_stop_and_pause_requests_reach_a_running_trial(sqlite_stage, action):
    stage = sqlite_stage
    study = stage.create("obedient:unhurried", num_trials=10_000)
    worker = stage.start(max_trials=1)
    stage.await_trial(lambda row: row.n_results > 0)

    (study.stop if action is Action.STOP else study.pause)(0)

    state = "TERMINATED" if action is Action.STOP else "PAUSED"
    ended = stage.await_state(state)
    assert worker.exit_code() == 0
    assert stage.steps() == list(range(1, ended.last_step + 1))


def test_worker_survives_an_outage_without_losing_a_result(crashable_postgres, tmp_path):
    migrate.upgrade(crashable_postgres.url())
    with Stage(crashable_postgres.url(), tmp_path) as stage:
        stage.create("obedient:hundred_steps", space={"step_s": 0.05})
        worker = stage.start()
        stage.await_trial(lambda row: row.n_results > 0)
        until_s = time.monotonic() + OUTAGE_S

        crashable_postgres.stop("immediate")
        eventually(lambda: "waiting" in worker.output() or time.monotonic() > until_s)
        crashable_postgres.start()
        stage.study.database.close()  # its connections died with the server

        assert worker.exit_code(60.0) == 0, worker.output()
        assert (
            worker.output().count("training continues without the database, results are buffered")
            == 1
        )
        assert worker.output().count("the database answers again") == 1
        assert stage.trial().attempt == 1
        assert stage.steps() == list(range(1, 101))


def test_idle_worker_prints_once_that_an_outage_began_and_ended(crashable_postgres, tmp_path):
    migrate.upgrade(crashable_postgres.url())
    with Stage(crashable_postgres.url(), tmp_path) as stage:
        stage.create("obedient:one_step")
        stage.study.pause()
        worker = stage.start()
        eventually(lambda: "is paused; waiting" in worker.output())

        crashable_postgres.stop("immediate")
        eventually(lambda: "waiting for the database: " in worker.output())
        crashable_postgres.start()
        eventually(lambda: "the database answers again" in worker.output())
        stage.study.database.close()  # its connections died with the server
        stage.study.resume()

        assert worker.exit_code(60.0) == 0, worker.output()
        assert worker.output().count("waiting for the database: ") == 1
        assert worker.output().count("the database answers again") == 1


def test_worker_ends_after_its_patience_in_an_outage(crashable_postgres, tmp_path):
    migrate.upgrade(crashable_postgres.url())
    with Stage(crashable_postgres.url(), tmp_path) as stage:
        stage.create("obedient:one_step", num_trials=10_000)
        worker = stage.start(patience=1.0)
        stage.await_trial(lambda row: row.state == "TERMINATED")

        crashable_postgres.stop("immediate")

        assert worker.exit_code(40.0) == 1
        assert "did not answer for too long" in worker.output()
        crashable_postgres.start()
