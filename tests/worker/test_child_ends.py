"""How attempts end: the function returns or fails, the attempt is stopped, or its process dies."""

# The trainables below are written as users write them, so they break these rules of ruff.
# ruff: noqa: ARG005, T201

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.child_messages import STOP, expect_failure, steps_of

import studydb
from studydb.child import stop_signals
from studydb.child.job import Job, TrainableImport
from studydb.child.messages import End, Ended, PreemptNotice, StopNotice, write
from studydb.child.running_trial import RunningTrial
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.processes import children_of, start_of
from studydb.worker.fork_server_client import ForkServer


def imported(name, folder):
    return Trainable("u", TrainableKind.IMPORT, name, str(folder), "3.11")


def test_traceback_of_an_exception_contains_only_frames_of_user_code(run):
    def inner():
        raise ValueError("learning rate is negative")

    def train(config):
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("training failed") from error

    failure = expect_failure(run(train), "RuntimeError", "training failed")

    assert "learning rate is negative" in failure.traceback
    assert failure.traceback.count("in train") == 2
    assert "studydb/child" not in failure.traceback
    assert "studydb/trainables" not in failure.traceback


def test_exception_of_a_trainable_is_printed_to_the_log(start):
    def train(config):
        raise ValueError("seen in the log")

    attempt = start(train)
    attempt.finish()

    assert "ValueError: seen in the log" in attempt.printed


def test_huge_exception_message_with_nul_and_surrogate_is_cut_and_escaped(run):
    def train(config):
        raise ValueError("x" * 10_000_000 + "\0\ud800end")

    failure = expect_failure(run(train), "ValueError")

    assert len(failure.message.encode()) <= 8 << 10
    assert len(failure.traceback.encode()) <= 64 << 10
    assert "\0" not in failure.message
    assert failure.message.endswith("\\x00\\ud800end")


def test_exception_whose_str_raises_is_reported(run):
    class Nasty(Exception):
        def __str__(self):
            raise TypeError

    def train(config):
        raise Nasty

    expect_failure(run(train), "Nasty", "its message raised TypeError")


@pytest.mark.parametrize(
    "break_stderr",
    [
        lambda: (sys.stderr.close(), sys.stdout.close()),
        lambda: setattr(sys, "stderr", None),
        lambda: os.close(2),
    ],
    ids=["closed", "missing", "closed descriptor"],
)
def test_exception_is_reported_even_if_it_cannot_be_printed(run, break_stderr):
    def train(config):
        break_stderr()
        raise ValueError("the real reason")

    expect_failure(run(train), "ValueError", "the real reason")


def test_alarm_that_is_left_over_does_not_interrupt_the_end_of_the_trial(start):
    def out_of_time(number, frame):
        raise TimeoutError

    def train(config, trial):
        signal.signal(signal.SIGALRM, out_of_time)
        RunningTrial.settle = lambda self: time.sleep(0.4)  # as an upload takes time
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        return 1.0

    attempt = start(train)

    assert attempt.finish()[-1] == Ended(End.COMPLETED)


@pytest.mark.parametrize("status", [0, 3, "text", None])
def test_sys_exit_in_a_trainable_is_a_failure(run, status):
    def train(config):
        studydb.report({"loss": 1.0})
        sys.exit(status)

    expect_failure(run(train), "SystemExit", f"sys.exit({status!r})")


def test_keyboard_interrupt_or_trial_stopped_from_the_trainable_is_a_failure(run):
    def interrupted(config):
        raise KeyboardInterrupt

    def stopped(config):
        raise studydb.TrialStopped

    expect_failure(run(interrupted), "KeyboardInterrupt")
    expect_failure(run(stopped), "TrialStopped", "nothing had stopped it")


def test_trainable_that_reports_no_metric_fails_and_the_error_says_why(run):
    expect_failure(run(lambda config: None), "TrainableError", "without reporting 'loss'")
    expect_failure(run(lambda config: "good"), "TrainableError", "returned or yielded a str")


def test_os_exit_ends_the_child_with_the_given_code_and_without_an_end_message(start):
    def train(config):
        studydb.report({"loss": 1.0})
        os._exit(3)

    attempt = start(train)

    assert steps_of(attempt.finish()) == [1]
    assert str(attempt.child.exit) == "exited with code 3"


def test_error_about_a_missing_module_names_the_working_directories_of_worker_and_study(
    run, tmp_path
):
    recorded = tmp_path / "recorded"

    messages = run(imported("nowhere:train", recorded), workdirs=(str(tmp_path), str(recorded)))

    failure = expect_failure(messages, "TrainableError", "--workdir", end=End.UNPREPARED)
    assert failure.message.startswith(
        f"There is no module 'nowhere', neither in {tmp_path} nor in {recorded}, nor installed"
    )


def test_error_about_a_missing_working_directory_names_the_directory(run, tmp_path):
    messages = run(lambda config: 1.0, workdirs=(str(tmp_path / "gone"),))

    gone = str(tmp_path / "gone")
    expect_failure(messages, "TrainableError", gone, "--workdir", end=End.UNPREPARED)


def test_unsigned_function_is_refused_if_its_module_imports_it_from_elsewhere(run, tmp_path):
    (tmp_path / "mine.py").write_text("from os import getcwd as train\n")

    messages = run(imported("mine:train", tmp_path), signed=False)

    expect_failure(messages, "TrainableError", "is not defined in mine", end=End.UNPREPARED)


def test_error_while_a_user_module_is_imported_shows_the_line_of_the_module(run, tmp_path):
    (tmp_path / "mine.py").write_text("\n\n1 / 0\n")

    messages = run(imported("mine:train", tmp_path))

    failure = expect_failure(messages, "ZeroDivisionError", end=End.UNPREPARED)

    assert 'mine.py", line 3' in failure.traceback
    assert "importlib" not in failure.traceback


def test_exit_handlers_of_user_code_are_called(start):
    def train(config):
        import atexit  # noqa: PLC0415  as libraries do

        atexit.register(print, "uploaded")
        return 1.0

    attempt = start(train)
    attempt.finish()

    assert attempt.printed == "uploaded\n"


def test_child_ends_when_its_worker_has_ended(start):
    def train(config):
        while True:
            studydb.report({"loss": 1.0})

    attempt = start(train)
    attempt.receive()

    attempt.child.channel.close()

    assert attempt.child.wait(10) is not None


# --- signals and notices that stop an attempt


STOP_SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.mark.row("D8")
@pytest.mark.parametrize("also", [None, *STOP_SIGNALS])
def test_report_after_stop_signals_sends_its_result_and_ends_the_attempt_as_preempted(start, also):
    def train(config, trial):
        trial.report({"loss": 1.0})
        print("ready")
        while not Path("sent").exists():
            time.sleep(0.001)
        trial.report({"loss": 2.0}, checkpoint={"step": 2})

    attempt = start(train)
    attempt.receive()
    eventually(lambda: "ready" in attempt.printed)
    if also is not None:
        os.kill(attempt.child.process.pid, also)
    attempt.child.terminate()
    (attempt.workdir / "sent").touch()
    last = attempt.receive()
    attempt.answer(last)

    assert (last.result.step, last.saved.step) == (2, 2)
    assert attempt.finish() == [Ended(End.PREEMPTED)]


def test_error_after_a_stop_signal_ends_the_attempt_as_preempted(start):
    def train(config, trial):
        trial.report({"loss": 1.0})
        print("ready")
        while not Path("sent").exists():
            time.sleep(0.001)
        raise OSError("the same signal has killed a data loader")

    attempt = start(train)
    attempt.receive()
    eventually(lambda: "ready" in attempt.printed)
    attempt.child.terminate()
    (attempt.workdir / "sent").touch()

    (ended,) = attempt.finish()
    assert ended.end is End.PREEMPTED
    assert ended.failure.message == "the same signal has killed a data loader"


def test_notice_that_the_worker_is_stopping_ends_the_trial_at_its_next_report(start):
    def train(config, trial):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not Path("sent").exists():
            time.sleep(0.001)
        trial.report({"loss": 1.0})

    attempt = start(train)
    attempt.child.channel.send(write(PreemptNotice()))
    (attempt.workdir / "sent").touch()

    assert attempt.finish()[-1] == Ended(End.PREEMPTED)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_second_stop_signal_has_no_effect_and_the_third_ends_the_process(start, number):
    def train(config, trial):
        stop_signals.SIGNAL_SPREAD_S = 0.05
        trial.report({"loss": 1.0})
        for sent in (1, 2):
            os.kill(os.getpid(), number)
            time.sleep(0.1)
            print("survived", sent)
        os.kill(os.getpid(), number)

    attempt = start(train)
    attempt.finish()

    assert attempt.child.exit.signal == number
    assert "survived 2" in attempt.printed


def test_report_that_says_done_after_a_stop_signal_completes_the_trial(start):
    def train(config, trial):
        trial.report({"loss": 1.0})
        Path("reported").touch()
        while not Path("sent").exists():
            time.sleep(0.001)
        trial.report({"loss": 2.0, "done": True})

    attempt = start(train)
    eventually((attempt.workdir / "reported").exists)
    attempt.child.terminate()
    (attempt.workdir / "sent").touch()

    *_, last, ended = attempt.finish()
    assert (last.id, last.result.is_last, last.result.metrics) == (None, True, {})
    assert ended == Ended(End.COMPLETED)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signal_before_the_trial_begins_kills_the_child(pump, tmp_path, number):
    def interrupt():
        eventually(lambda: children_of(server.pid))
        os.kill(*children_of(server.pid), number)
        eventually(lambda: not any(map(start_of, children_of(server.pid))))
        return job

    folder = str(tmp_path)
    to_import = TrainableImport("s", imported("mine:train", folder), True, (folder,))
    job = Job(to_import, "t", 0, 1, {}, 0, Objective("loss", Mode.MIN), folder, "inline:")
    output = pump.open(tmp_path)
    with closing(ForkServer()) as server:
        server.start()
        child = server.spawn(interrupt, stdout=output.stdout, stderr=output.stderr)

        assert child.wait().signal == number
        child.channel.close()
    output.finish()
    assert output.tail() == b""


@pytest.mark.parametrize("named", [{}, {"training_iteration": 1}, {"training_iteration": 2}])
def test_checkpoint_can_be_saved_after_trial_stopped_is_raised(start, named):
    def train(config, trial):
        try:
            trial.report({"loss": 1.0})
        except studydb.TrialStopped:
            trial.report({"loss": 1.0, **named}, checkpoint={"weights": 1})

    attempt = start(train, next_decision_step=1)
    attempt.answer(attempt.receive(), verdict=STOP)

    last = attempt.receive()
    attempt.answer(last, verdict=STOP)

    assert last.result is None
    assert last.saved.step == named.get("training_iteration", 1)
    assert attempt.finish() == [Ended(End.STOPPED)]


@pytest.mark.parametrize("checkpoint", [None, {"weights": 1}])
def test_report_after_a_stop_notice_saves_its_checkpoint_but_not_its_result(
    start, tmp_path, checkpoint
):
    def train(config, trial):
        while not Path("sent").exists():
            time.sleep(0.001)
        trial.report({"loss": 1.0}, checkpoint=checkpoint)

    attempt = start(train)
    attempt.child.channel.send(write(StopNotice(STOP)))
    (tmp_path / "sent").touch()
    *reports, ended = attempt.finish()

    assert [(m.result, m.saved.step) for m in reports] == ([(None, 1)] if checkpoint else [])
    assert ended == Ended(End.STOPPED)
