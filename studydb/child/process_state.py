"""
Find and undo what a trial has changed in its process, so that the process can run another trial.

Some changes are undone. Others cannot be undone; after such a change the process runs no more
trials.
"""

import faulthandler
import os
import resource
import signal
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from studydb.artifacts import library_threads
from studydb.child.fork_safety import descriptors
from studydb.processes import adopt_orphans

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_TASKS = Path("/proc/self/task")
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


def stop_timers() -> None:
    """Stop the alarms that the user's code has set: a handler could raise outside of that code."""
    for timer in _TIMERS:
        signal.setitimer(timer, 0)


class ProcessState:
    """
    The state of this process before its first trial.

    The constructor makes this process adopt its orphaned descendants, so that `reason_against`
    finds them.
    """

    def __init__(self) -> None:
        adopt_orphans()
        self._environment = dict(os.environ)
        self._handlers = _handlers()
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._limits = _limits()
        self._threads = set(threading.enumerate())
        self._n_python_threads = _n_python_threads()

    def restore(self) -> None:
        """Undo what a trial has changed in environment, signals, timers and umask."""
        stop_timers()
        faulthandler.cancel_dump_traceback_later()
        signal.set_wakeup_fd(-1)
        for number, handler in _handlers().items():
            if handler != self._handlers.get(number):
                signal.signal(number, self._handlers.get(number, signal.SIG_DFL))
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.umask(self._umask)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)

    def reason_against(self) -> str | None:
        """
        Return why this process must not run another trial, or None.

        A Python thread that the trial has left could report for the next trial. A process that the
        trial has left, or another stream to the trial's output, could write to the trial's log
        while the next trial runs. A process that the trial has left would also live until the last
        trial of this process ends. Two kinds of threads are no reason: threads of libraries such as
        OpenBLAS that run no Python code now, and the threads that the library of a remote store has
        started.
        """
        if not (_TASKS / str(os.getpid()) / "children").exists():
            return "this system cannot list the processes that the trial has left"
        if thread := self._new_thread():
            return f"the trial has left {thread}"
        if children := _children():
            return f"the trial has left process {children[0]}"
        if _has_more_outputs():
            return "the trial has left another stream to its output"
        if _limits() != self._limits:
            return "the trial has changed the limits, cores or priority of its process"
        return None

    def _new_thread(self) -> str | None:
        known = self._threads | library_threads()
        threads = [thread.name for thread in threading.enumerate() if thread not in known]
        if threads:
            return f"the thread {threads[0]!r}"
        if _n_python_threads() > self._n_python_threads:
            return "a thread that runs Python code"
        return None


def _n_python_threads() -> int:
    """Count the threads that run Python code, even if C started them; omit `library_threads`."""
    return len(sys._current_frames()) - len(library_threads())  # noqa: SLF001


def _handlers() -> dict[int, Any]:
    """Return the handlers of all signals, without handlers that code in C has set."""
    found = {}
    for number in signal.valid_signals():
        with suppress(ValueError):
            found[int(number)] = signal.getsignal(number)
    return {number: handler for number, handler in found.items() if handler is not None}


def _children() -> list[int]:
    """List the pids of this process's children, including ended children and adopted orphans."""
    found: list[int] = []
    for task in os.listdir(_TASKS):  # noqa: PTH208  names, not paths
        with suppress(FileNotFoundError):  # the thread has ended
            found += map(int, (_TASKS / task / "children").read_bytes().split())
    return found


def _has_more_outputs() -> bool:
    """Whether a descriptor other than 0, 1 and 2 belongs to a pipe of the trial's output."""
    pipes = {_pipe(1), _pipe(2)} - {None}
    return any(_pipe(number) in pipes for number in descriptors() - {0, 1, 2})


def _pipe(descriptor: int) -> tuple[int, int] | None:
    """The device and inode of a pipe; None if the descriptor is no pipe, or is closed."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISFIFO(found.st_mode):
            return found.st_dev, found.st_ino
    return None


def _limits() -> tuple[object, ...]:
    limits = [resource.getrlimit(number) for number in _LIMITS]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return (*limits, os.getpriority(os.PRIO_PROCESS, 0), cores)
