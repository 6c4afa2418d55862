"""The end of a command: how its processes are stopped or killed, and output that stays open."""

import signal
import time
from pathlib import Path

import psutil
import pytest
from fleet.departures import lives
from fleet.workers import eventually


@pytest.fixture
def storage_url(sqlite_url):
    """The tests run on SQLite alone, because what they check does not depend on the database."""
    return sqlite_url


@pytest.fixture
def create(create_command):
    return create_command


@pytest.mark.nightly
def test_stopped_command_gets_sigterm_and_the_stop_file_and_may_save_but_not_report(
    stage, script, create
):
    create(
        script(
            'end() { cat "$STUDYDB_STOP" > "$1/why"; echo last > "$STUDYDB_SAVE/state"\n'
            "  studydb report error=9 --step 7 --save; exit 1; }\n"
            'trap "end $1" TERM\n'
            "studydb report error=1\n"
            "while :; do sleep 0.05; done\n"
        ),
        "{folder}",
    )
    worker = stage.start()
    stage.await_result()

    stage.study.stop(0)

    assert worker.exit_code(30.0) in (0, 3)
    assert (stage.trial().state, stage.trial().reason) == ("TERMINATED", "CANCELLED")
    assert (stage.folder / "why").read_text() == "stop\n"
    assert stage.steps() == [1]
    assert stage.trial().checkpoint_step == 7


@pytest.mark.nightly
def test_signalled_worker_gives_the_trial_back_after_a_last_checkpoint(stage, script, create):
    create(
        script(
            'end() { echo last > "$STUDYDB_SAVE/state"; studydb report error=1 --step 5 --save; exit 0; }\n'
            "trap end TERM\n"
            '[ -z "$STUDYDB_CHECKPOINT" ] || { studydb report error=0 --step 9; exit 0; }\n'
            "studydb report error=1\n"
            "while :; do sleep 0.05; done\n"
        ),
    )
    worker = stage.start()
    stage.await_result()

    worker.send(signal.SIGTERM)

    assert worker.exit_code(30.0) == 143
    assert stage.expect_released().checkpoint_step == 5
    assert stage.run() == 0
    assert stage.steps()[-1] == 9


@pytest.mark.nightly
def test_sigterm_reaches_all_processes_of_the_command(stage, script, create):
    create(
        script(
            "trap : TERM\n"
            """sh -c 'trap "touch $0/term; exit 0" TERM; while :; do sleep 0.02; done' "$1" &\n"""
            "studydb report error=1\n"
            "wait; wait\n"
        ),
        "{folder}",
    )
    worker = stage.start(grace=5)
    stage.await_result()

    stage.study.stop(0)

    assert worker.exit_code(30.0) in (0, 3)
    assert (stage.folder / "term").exists()


@pytest.mark.slow
def test_no_process_is_left_when_the_worker_is_killed(stage, script, create):
    create(
        script(
            "trap '' TERM; setsid sleep 300 & sleep 300 & studydb report error=1; wait; sleep 300"
        )
    )
    worker = stage.start()
    stage.await_result()
    eventually(lambda: list(worker.names().values()).count("sleep") == 2)

    worker.kill()

    eventually(lambda: not worker.processes(), 2.0)


@pytest.mark.slow
def test_next_worker_removes_the_temporary_files_of_a_killed_worker(stage, script, create):
    create(script('echo state > "$STUDYDB_SAVE/state"; studydb report error=1; sleep 300'))
    worker = stage.start()
    stage.await_result()
    (command,) = worker.commands()
    save = Path(command.environ()["STUDYDB_SAVE"])
    assert (save / "state").exists()

    worker.kill()

    assert (save / "state").exists()
    stage.start()
    eventually(lambda: not save.parent.exists())


@pytest.mark.slow
def test_command_dies_with_the_process_of_its_trial_if_worker_and_fork_server_are_killed(
    stage, script, create
):
    create(script("trap '' TERM; studydb report error=1; while :; do sleep 0.1; done"))
    worker = stage.start()
    stage.await_result()
    (command,) = worker.commands()

    worker.send(signal.SIGSTOP)  # so that the worker does not see its fork server die
    worker.fork_server().kill()
    worker.kill()

    eventually(lambda: not lives(command), 2.0)


@pytest.mark.nightly
def test_worker_kills_processes_left_by_a_killed_worker_and_fork_server_but_none_of_a_living_worker(
    stage, script, create
):
    create(script("setsid sleep 300 & studydb report error=1; sleep 300"), num_trials=2)
    living, worker = stage.start(), stage.start()
    for one in (living, worker):
        eventually(lambda one=one: list(one.names().values()).count("sleep") == 2)
    of_living = [pid for pid, name in living.names().items() if name == "sleep"]
    worker.send(signal.SIGSTOP)  # so that the worker does not see its fork server die
    worker.fork_server().kill()
    worker.kill()
    eventually(lambda: set(worker.names().values()) == {"sleep"})

    third = stage.start()

    eventually(lambda: not worker.processes(), 5.0)
    third.send(signal.SIGTERM)
    # `third` exits only after the processes that it kills have ended.
    assert third.exit_code(20.0) == 143
    assert [psutil.Process(pid).status() for pid in of_living] == [psutil.STATUS_SLEEPING] * 2


@pytest.mark.slow
def test_command_that_ignores_sigterm_is_killed_after_the_grace(stage, script, create):
    create(script("trap '' TERM; studydb report error=1; while :; do sleep 0.1; done"))
    worker = stage.start(grace=0.5)
    stage.await_result()
    began_s = time.monotonic()

    worker.send(signal.SIGTERM)

    assert worker.exit_code(20.0) == 143
    assert time.monotonic() - began_s < 10
    stage.expect_released()


@pytest.mark.slow
def test_command_whose_report_was_refused_is_killed_after_the_grace(stage, script, create):
    create(script("trap '' TERM; echo '[studydb] wrong'; while :; do sleep 0.1; done"))

    stage.run(grace=0.5)

    assert stage.trial().state == "ERROR"


@pytest.mark.nightly
def test_grace_of_the_worker_is_the_grace_of_the_command(stage, script, create):
    create(
        script(
            'trap "echo term > "$1/term"" TERM\n'
            "studydb report error=0.1\n"
            "while :; do sleep 0.1; done\n"
        ),
        "{folder}",
        stop=["error<=0.2"],
    )
    began_s = time.monotonic()

    assert stage.run(grace=3.0) == 0

    assert time.monotonic() - began_s < 10
    assert (stage.folder / "term").exists()


def test_endless_output_of_a_process_in_another_session_does_not_delay_the_end_of_the_trial(
    stage, script, create
):
    create(script("studydb report error=1\nsetsid sh -c 'while :; do echo xxxxxxxx; done' &\n"))

    assert stage.run() == 0
    assert stage.trial().state == "TERMINATED"


def test_background_process_that_keeps_the_output_open_does_not_delay_the_end_of_the_trial(
    stage, script, create
):
    create(script("sleep 300 & studydb report error=1"))

    began_s = time.monotonic()
    assert stage.run() == 0
    assert time.monotonic() - began_s < 30


@pytest.mark.slow
def test_stopped_command_has_its_grace_even_if_the_stop_file_cannot_be_made(stage, script, create):
    create(
        script(
            "trap 'sleep 0.5; touch \"$1/saved\"; exit 1' TERM\n"
            "studydb report error=1\n"
            'rm -r "$(dirname "$STUDYDB_STOP")"\n'
            'touch "$1/began"\n'
            "while :; do sleep 0.05; done\n"
        ),
        "{folder}",
    )
    worker = stage.start()
    eventually((stage.folder / "began").exists)

    worker.send(signal.SIGTERM)

    assert worker.exit_code() == 143
    assert (stage.folder / "saved").exists()
