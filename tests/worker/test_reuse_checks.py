"""Reused processes and deciders: stop signals, open files, and hosts without /proc/self/statm."""

import os
import resource
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from studydb.child import decider
from studydb.child.staleness import Staleness
from studydb.child.stop_signals import ProcessStopped, StopSignals


def stop(signals):
    signals._handle(signal.SIGTERM, None)


def test_stop_signal_is_deferred_until_the_descriptors_of_the_next_trial_are_received():
    signals, done = StopSignals(), []

    def take_over():
        with signals.deferred():
            stop(signals)
            done.append("descriptors received")

    with pytest.raises(ProcessStopped):
        take_over()

    assert done
    stop(signals)  # raises nothing: the process is already ending


def test_trial_does_not_begin_after_a_stop_signal_whose_exception_was_caught(monkeypatch):
    handled = []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    signals = StopSignals()
    with pytest.raises(ProcessStopped):
        stop(signals)

    with pytest.raises(ProcessStopped):
        signals.begin(None)

    assert not handled


def test_process_in_which_trials_leave_many_files_open_is_replaced(monkeypatch):
    staleness = Staleness(time.time_ns())
    with ExitStack() as files:

        def leave(number):
            for _ in range(number):
                files.enter_context(Path(os.devnull).open())

        monkeypatch.setattr(resource, "getrlimit", lambda _limit: (40, 40))
        leave(20)
        staleness.measure()
        leave(10)
        assert staleness.reason() is None
        leave(1)
        assert "11 files" in staleness.reason()


def test_decider_runs_on_a_host_without_proc_self_statm(monkeypatch):
    def fail(_began_ns):
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(decider, "Staleness", fail)

    assert decider._reason_against(decider._staleness(time.time_ns())) is None
