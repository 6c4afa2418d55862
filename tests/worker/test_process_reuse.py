"""What the next trial of a reused process does not see; when and how such a process ends."""

# The trainables below are written as users write them, so they break these rules of ruff.
# ruff: noqa: ARG002, T201

import atexit
import ctypes
import faulthandler
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.child_messages import STOP, expect_failure, steps_of, values_of
from harness.reused_process import Reusing

import studydb
from studydb.artifacts import digest_of
from studydb.artifacts.checkpoint_records import Restore
from studydb.child import running_trial
from studydb.child.messages import (
    End,
    Ended,
    Reported,
    StopNotice,
    write,
)
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.trainable import Trainable, TrainableKind


class Once(studydb.Trainable):
    """Has one step, which calls `facts`, and also `act` if the config has `acts`."""

    def setup(self, config):
        print("setup")

    def reset_config(self, config):
        return True

    def act(self):
        """Do what the next trial must not see."""

    def facts(self):
        return {}

    def step(self):
        facts = self.facts()
        if self.config.get("acts"):
            self.act()
        return {"loss": self.config["x"], "facts": json.dumps(facts), "done": True}

    def cleanup(self):
        print("cleanup")


@pytest.fixture
def new_process(fork_server, pump, tmp_path):
    """Return a function that makes a `Reusing` in a new folder."""
    made = []

    def make():
        folder = tmp_path / f"process-{len(made)}"
        folder.mkdir()
        made.append(Reusing(fork_server, pump, folder))
        return made[-1]

    yield make
    for process in made:
        process.close()


@pytest.fixture
def process(new_process):
    return new_process()


# what the next trial does not see


class Changing(Once):
    def act(self):
        os.environ["MINE"] = "1"
        os.environ.pop("HOME", None)
        os.umask(0o077)
        os.chdir("/")
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        signal.setitimer(signal.ITIMER_REAL, 60)
        sys.argv.append("mine")
        random.seed(3)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123

    def facts(self):
        umask = os.umask(0)
        os.umask(umask)
        return {
            "environment": {**os.environ, "STUDYDB_CHILD": ""},
            "umask": umask,
            "directory": Path.cwd().name,
            "handler": str(signal.getsignal(signal.SIGUSR1)),
            "term": signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "timer": signal.getitimer(signal.ITIMER_REAL),
            "arguments": sys.argv,
            "random": random.random(),
            "stdout": sys.stdout is sys.__stdout__,
        }


@pytest.mark.row("D6")
def test_next_trial_finds_the_process_in_the_state_of_a_new_process(process, new_process):
    process.facts(Changing, config={"acts": True})
    reused = process.facts(Changing)
    fresh = new_process().facts(Changing)

    assert process.printed(1) == ""  # the second trial calls neither setup nor cleanup
    fresh["directory"] = process._folder.name
    assert reused == fresh


class Printing(Once):
    def act(self):
        print("first", end="")
        print("error", end="", file=sys.stderr)
        c = ctypes.CDLL(None)
        # With PYTHONUNBUFFERED, C's stdout has no buffer either; setvbuf gives it a buffer.
        c.malloc.restype = ctypes.c_void_p
        buffer = ctypes.c_void_p(c.malloc(4096))
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), buffer, 0, 4096)
        c.printf(b" buffered by C")


def test_output_that_a_trial_has_buffered_goes_to_its_own_log(process):
    process.run(Printing, config={"acts": True})
    process.run(Printing)
    process.run(Printing, config={"acts": True})

    assert "first" in process.printed(0)
    assert "error" in process.printed(0)
    assert "buffered by C" in process.printed(0)
    assert process.printed(1) == ""
    assert "setup" not in process.printed(2)


class Zombie(Once):
    """Keeps the first trial's `RunningTrial`, and calls its `report` in later trials."""

    first = None

    def step(self):
        if self.first is None:
            self.first = running_trial._current
            return super().step()
        try:
            self.first.report({"loss": 99.0})
        except studydb.UsageError as error:
            print(error)
        return super().step()


def test_ended_trial_cannot_report_into_the_next_trial_of_its_process(process):
    process.run(Zombie)
    report, ended = process.run(Zombie)

    assert (report.result.value, report.result.step) == (1.0, 1)
    assert ended.end is End.COMPLETED
    assert "Trial 0 has ended" in process.printed(1)


def test_stop_notice_for_an_ended_trial_does_not_stop_the_next_trial(process):
    process.run(Once)
    process.child.channel.send(write(StopNotice(STOP)))

    assert process.run(Once)[-1].end is End.COMPLETED


class Long(Once):
    """Takes steps, each with a checkpoint, until it is stopped."""

    def setup(self, config):
        self.count = 0

    def reset_config(self, config):
        self.count = 0
        return True

    def step(self):
        self.count += 1
        time.sleep(0.01)
        return {"loss": self.count, "own_iteration": self.iteration, "x": self.config["x"]}

    def save_checkpoint(self, directory):
        return {"count": self.count}

    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]


def test_stopped_trial_leaves_its_process_to_a_trial_with_another_config_and_checkpoint(process):
    process.begin(Long)
    saved = process.receive().saved
    process.child.channel.send(write(StopNotice(STOP)))
    while not isinstance(ended := process.receive(), Ended):
        pass
    restore = Restore(
        CheckpointKind.DICT, "inline:", digest_of(saved.data), step=1, data=saved.data
    )

    process.begin(Long, restore=restore)
    second = process.receive()

    assert (ended.end, ended.kept) == (End.STOPPED, True)
    assert (second.result.step, second.result.value) == (2, 2)
    assert second.result.metrics["own_iteration"] == 1
    assert second.result.metrics["x"] == 1.0


class Hurried(Once):
    """Sets a timeout for all new sockets, as users do for downloads, and saves 4 MiB."""

    def setup(self, config):
        socket.setdefaulttimeout(1e-5)

    def save_checkpoint(self, directory):
        return {"weights": bytes(4 << 20)}

    def load_checkpoint(self, checkpoint):
        """Nothing is restored here."""


def test_timeout_for_new_sockets_does_not_cut_the_channel_of_the_next_trial(process):
    ends = [process.run(Hurried)[-1] for _ in range(2)]

    assert [(ended.end, ended.failure) for ended in ends] == [(End.COMPLETED, None)] * 2


class Watched(Once):
    """Sets a watchdog in its first trial; its second trial lasts longer than the watchdog waits."""

    def act(self):
        faulthandler.dump_traceback_later(0.3, exit=True)

    def step(self):
        if not self.config.get("acts"):
            time.sleep(0.5)
        return super().step()


def test_watchdog_of_a_trial_does_not_end_the_next_trial(process):
    process.run(Watched, config={"acts": True})

    assert process.run(Watched)[-1].end is End.COMPLETED


# which processes are used again


def function(config):
    return config["x"]


class WithoutReset(studydb.Trainable):
    def step(self):
        return {"loss": self.config["x"], "done": True}


class AskingForFresh(Once):
    studydb_start = "fresh"


@pytest.mark.parametrize("trainable", [function, WithoutReset, AskingForFresh])
def test_process_runs_only_one_trial_if_its_trainable_cannot_be_reset_or_asks_for_a_fresh_start(
    process, trainable
):
    ended = process.run(trainable)[-1]

    assert (ended.end, ended.kept) == (End.COMPLETED, False)
    assert process.exit().code == 0


class LeavesThread(Once):
    def act(self):
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name="mine").start()


class LeavesProcess(Once):
    def act(self):
        self.left = subprocess.Popen(["sleep", "60"])


class LeavesDaemon(Once):
    """Leaves a process that has its own session and whose parent has ended."""

    def act(self):
        subprocess.run(["sh", "-c", "setsid sleep 60 &"], check=True)


class ChangesLimits(Once):
    def act(self):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        os.nice(1)


class LosesCore(Once):
    def act(self):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


class LeavesStream(Once):
    def act(self):
        self.log = open("/dev/stdout", "w")  # noqa: SIM115, PTH123


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        (LeavesStream, "another stream to its output"),
        (LeavesThread, "the thread 'mine'"),
        (LeavesProcess, "the trial has left process"),
        (LeavesDaemon, "the trial has left process"),
        (ChangesLimits, "limits"),
        (LosesCore, "cores"),
    ],
)
def test_process_ends_if_a_trial_has_left_or_changed_something_in_it(process, trainable, words):
    ended = process.run(trainable, config={"acts": True})[-1]

    assert (ended.end, ended.kept) == (End.COMPLETED, False)
    assert words in ended.not_kept
    assert process.exit().code == 0
    assert "cleanup" in process.printed(0)


class NativeThread(Once):
    """Leaves a thread that runs no Python code, as OpenBLAS and OpenMP do."""

    def act(self):
        c = ctypes.CDLL(None)
        c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, c.pause, None)

    def facts(self):
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_process_with_a_thread_of_a_library_is_used_again(process):
    process.facts(NativeThread, config={"acts": True})

    assert process.facts(NativeThread) == 2


class Growing(Once):
    def act(self):
        self.data = bytearray(os.urandom(1 << 20)) * 300


def test_process_ends_if_its_memory_has_grown_since_its_first_trial(process):
    first = process.run(Growing)[-1]
    second = process.run(Growing, config={"acts": True})[-1]

    assert (first.kept, second.kept) == (True, False)
    assert "grown" in second.not_kept


class Raising(Once):
    def act(self):
        raise ValueError("no step")


def test_process_of_a_failed_trial_is_not_used_again(process):
    ended = process.run(Raising, config={"acts": True})[-1]

    assert (ended.end, ended.kept) == (End.FAILED, False)
    assert process.exit().code == 1


def test_process_ends_if_a_source_file_has_changed(process):
    source = """
        import studydb
        class Mine(studydb.Trainable):
            def step(self):
                return {"loss": 1.0, "done": True}
            def reset_config(self, config):
                return True
        """
    file = process._folder / "mine.py"
    file.write_text(textwrap.dedent(source))
    os.utime(file, (1e9, 1e9))
    trainable = Trainable("u", TrainableKind.IMPORT, "mine:Mine", str(process._folder), "3.11")
    kept = [process.run(trainable)[-1].kept for _ in range(2)]

    os.utime(file, (2e9, 2e9))
    after = process.run(trainable)

    assert kept == [True, True]
    assert [message.end for message in after] == [End.NOT_REUSED]
    assert process.exit().code == 0


# reset_config


class Answering(Once):
    def reset_config(self, config):
        print("reset")
        return config["answer"]

    def cleanup(self):
        print("cleanup of", self.config["x"])


def test_process_cleans_up_and_ends_if_reset_config_returns_false(process):
    process.run(Answering)
    (ended,) = process.run(Answering, config={"answer": False})

    assert ended.end is End.NOT_REUSED
    assert process.exit().code == 0
    assert process.printed(1).splitlines() == ["reset", "cleanup of 0.0"]


def test_reset_config_must_return_true_or_false(process):
    process.run(Answering)
    messages = process.run(Answering, config={"answer": None})

    expect_failure(messages, "TrainableError", "reset_config()", "True or False")


class FailingReset(Once):
    def reset_config(self, config):
        raise ValueError("reset failed")


class FailingCleanup(Answering):
    def cleanup(self):
        raise ValueError("cleanup failed")


def test_error_in_reset_config_fails_the_next_trial_with_its_traceback(process):
    process.run(FailingReset)
    messages = process.run(FailingReset)

    failure = expect_failure(messages, "ValueError", "reset failed")
    assert "in reset_config" in failure.traceback
    assert process.exit().code == 1
    assert "cleanup" in process.printed(1)


def test_error_in_the_cleanup_after_reset_config_returned_false_fails_no_trial(process):
    process.run(FailingCleanup)
    (ended,) = process.run(FailingCleanup, config={"answer": False})

    assert (ended.end, ended.failure) == (End.NOT_REUSED, None)
    assert "cleanup failed" in process.printed(1)


class ReportingReset(Once):
    def reset_config(self, config):
        studydb.report({"loss": 1.0})
        return False


def test_reset_config_that_reports_and_returns_false_fails_its_trial(process):
    process.run(ReportingReset)
    messages = process.run(ReportingReset)

    expect_failure(messages, "TrainableError", "reset_config() has reported")


# how a process ends


@pytest.mark.parametrize("how", ["SIGTERM", "closed channel"])
def test_waiting_process_cleans_up_and_ends_after_sigterm_or_a_closed_channel(process, how):
    process.run(Once)
    if how == "SIGTERM":
        process.child.terminate()
    else:
        process.child.channel.close()

    assert process.exit().code == 0
    assert process.printed(0).splitlines() == ["setup", "cleanup"]


class Cleaning(Once):
    def cleanup(self):
        print("cleanup")
        time.sleep(60)


def test_process_that_cleans_up_takes_no_trial(process):
    process.run(Cleaning)
    process.child.terminate()
    eventually(lambda: "cleanup" in process.printed(0))

    with pytest.raises(BrokenPipeError):
        process.begin(Cleaning)


class LongOnDemand(Long):
    def step(self):
        return {**super().step(), "done": not self.config.get("long")}


def test_sigterm_preempts_the_running_trial_and_its_process_is_not_used_again(process):
    process.run(LongOnDemand)
    process.begin(LongOnDemand, config={"long": True})
    process.receive()

    process.child.terminate()
    while not isinstance(ended := process.receive(), Ended):
        pass

    assert (ended.end, ended.kept) == (End.PREEMPTED, False)
    assert process.exit().code == 0


def test_error_in_the_last_cleanup_is_printed_and_the_exit_functions_run(process):
    class Complaining(Once):
        def setup(self, config):
            atexit.register(print, "exit function")

        def cleanup(self):
            raise OSError("no cleanup")

    process.run(Complaining)
    process.child.channel.close()

    assert process.exit().code == 0
    assert "OSError: no cleanup" in process.printed(0)
    assert "exit function" in process.printed(0)


class Forking(Once):
    def act(self):
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)


def test_process_forked_by_the_second_trial_does_not_keep_the_channel_open(process):
    process.run(Forking)
    report, ended = process.run(Forking, config={"acts": True})

    assert isinstance(report, Reported)
    assert ended.not_kept is not None
    with pytest.raises(EOFError):
        process.receive()


def test_crash_in_a_reused_process_prints_its_stack_into_the_log_of_its_trial(process):
    class Crashing(Once):
        def act(self):
            ctypes.string_at(0)

    process.run(Crashing)
    process.begin(Crashing, config={"acts": True})

    assert process.exit().signal == signal.SIGSEGV
    assert "in act" in process.printed(1)
    assert "in act" not in process.printed(0)


def test_each_trial_of_a_process_counts_its_steps_from_one(process):
    first, second = process.run(Once), process.run(Once)

    assert (steps_of(first), steps_of(second)) == ([1], [1])
    assert (values_of(first), values_of(second)) == ([0.0], [1.0])
