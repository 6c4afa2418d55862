"""Measures how long processes live after the death of a process above them."""

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import psutil

_TICK_S = 0.05


class Departures:
    """
    Measures, in a thread for each death, how long the processes below the dead process live on.

    Args:
        limit_s: How long these processes may live after the death.

    Attributes:
        longest_s: By kind of dead process, the longest time until all processes below it had ended.
            Deaths with survivors are left out.
        survivors: The processes that lived longer than the limit.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.longest_s: dict[str, float] = {}
        self.survivors: list[str] = []
        self._threads: list[threading.Thread] = []

    def watch(
        self,
        what: str,
        living: Callable[[], Collection[psutil.Process]],
        *,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Watch the processes below a process that has died just now.

        Args:
            what: The kind of the dead process.
            living: Returns the processes below the dead process that are still alive.
            waits: Returns whether the process that must end the living processes may still be
                waiting for the database, or is stopped. The limit counts from the end of this wait.
        """
        act = partial(self._watch, what, living, waits, time.monotonic())
        self._threads.append(threading.Thread(target=act, daemon=True))
        self._threads[-1].start()

    def wait(self) -> None:
        """Wait until each watched process has ended, or has lived longer than the limit."""
        for thread in self._threads:
            thread.join()

    def _watch(
        self,
        what: str,
        living: Callable[[], Collection[psutil.Process]],
        waits: Callable[[], bool],
        died_s: float,
    ) -> None:
        while left := living():
            # The processes of a frozen worker end only after it thaws.
            if waits() or any(map(is_stopped, left)):
                died_s = time.monotonic()
            elif time.monotonic() - died_s > self.limit_s:
                self.survivors += [f"{one} of a {what}" for one in left]
                return
            time.sleep(_TICK_S)
        lived_s = time.monotonic() - died_s
        self.longest_s[what] = max(lived_s, self.longest_s.get(what, 0.0))

    def __str__(self) -> str:
        longest = (f"{what} {seconds:.2f} s" for what, seconds in sorted(self.longest_s.items()))
        return ", ".join(longest) or "none"


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; a process with the status "zombie" has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_stopped(process: psutil.Process) -> bool:
    """Whether SIGSTOP has stopped a process."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
