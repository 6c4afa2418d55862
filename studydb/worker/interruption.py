"""Why a worker stops: a signal, a person's drain, or an error such as a long outage."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from studydb.processes import SIGNAL_SPREAD_S

RETRY_SHARE = 1 / 3
"""
While the database does not answer, a worker that got a stop signal repeats its requests for this
share of the grace. In the remaining time, the last request can wait for its answer, and the worker
cleans up.
"""


class Interruption:
    """
    Whether and why a worker is stopping; the worker's threads share this object.

    Attributes:
        signal: The first stop signal, or None. Any later stop signal replaces a SIGHUP or the
            preempt signal.
        gave_up: The message of the error that ends the worker; None without an error.
        urgent_since_s: When the first signal or error came, by the monotonic clock; None without
            a signal or error. A drain and `stop_claiming` are not urgent and leave it None.
        since_s: When the worker began to stop, by the monotonic clock; None before that.
        turn: The semaphore that an idle slot holds while it polls the database, so that only one
            slot polls at a time. When the worker is to claim no more, the slots that wait for the
            semaphore get it one after another, without delay.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._claiming_ended = threading.Event()
        self.signal: int | None = None
        self.gave_up: str | None = None
        self.urgent_since_s: float | None = None
        self.since_s: float | None = None
        self.is_drained = False
        self.turn = threading.Semaphore()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker claims no more trials and releases those that run."""
        return self._stopping.is_set()

    @property
    def may_claim(self) -> bool:
        """Whether the worker claims trials. A worker that claims no more may still run trials."""
        return not self._claiming_ended.is_set()

    def drain(self) -> None:
        self.is_drained = True
        self._stop()

    def stop_claiming(self, why: str) -> None:
        """
        End the worker with an error once the trials that it runs have ended.

        Args:
            why: The message of the error.
        """
        self.gave_up = self.gave_up or why
        self._end_claiming()

    def give_up(self, why: str) -> None:
        self.gave_up = self.gave_up or why
        self._stop_urgently()

    def _stop_urgently(self) -> None:
        self.urgent_since_s = self.urgent_since_s or time.monotonic()
        self._stop()

    def _stop(self) -> None:
        self._end_claiming()
        self.since_s = self.since_s or time.monotonic()
        self._stopping.set()

    def _end_claiming(self) -> None:
        if self.may_claim:
            self._claiming_ended.set()
            self.turn.release()  # the slot that gets this turn gives it to the next

    def left_s(self, grace_s: float) -> float:
        """Return how much of a grace is left; the grace begins when the worker begins to stop."""
        if self.since_s is None:
            return grace_s
        return max(0.0, self.since_s + grace_s - time.monotonic())

    def is_late(self, grace_s: float) -> bool:
        """Whether a signal has stopped the worker, and `RETRY_SHARE` of the grace is over."""
        return self.signal is not None and self.left_s(grace_s) <= (1 - RETRY_SHARE) * grace_s

    def wait(self, timeout_s: float) -> bool:
        """Wait until the worker is stopping; return False after the timeout."""
        return self._stopping.wait(timeout_s)

    def wait_to_claim(self, timeout_s: float) -> None:
        """Wait before the next claim; return sooner if the worker is to claim no more."""
        self._claiming_ended.wait(timeout_s)

    def listen(self, end_process: Callable[[int], None], *, preempt_signal: int = 0) -> None:
        """
        Stop the worker at SIGTERM, SIGINT or SIGHUP; call this from the main thread.

        A second SIGTERM or SIGINT ends the process, if it comes more than `SIGNAL_SPREAD_S` after
        the first: a service manager may send one signal twice, to the process and to its group.
        SIGHUP does not count: it may come twice from a closed terminal, or after SIGTERM from a
        service manager. Under nohup, SIGHUP has no effect.

        The handler takes no lock, because the signal may have interrupted the code that holds the
        lock. The handler wakes a thread, which stops the worker.

        Args:
            end_process: Called at the second signal, to end the process.
            preempt_signal: One more signal that stops the worker; like SIGHUP, it does not count
                as a second signal. 0 for none.
        """
        uncounted = (signal.SIGHUP, preempt_signal)

        counted_since_s: float | None = None
        woken, wake = os.pipe()
        os.set_blocking(wake, False)

        def handle(number: int, _frame: FrameType | None) -> None:
            nonlocal counted_since_s
            now_s = time.monotonic()
            if counted_since_s is None:
                self.signal = number
            if number not in uncounted:
                counted_since_s = now_s if counted_since_s is None else counted_since_s
                if now_s - counted_since_s > SIGNAL_SPREAD_S:
                    end_process(number)
            with suppress(BlockingIOError):  # the pipe is full, so the thread will wake anyway
                os.write(wake, b"!")

        def stop_when_woken() -> None:
            while os.read(woken, 1):
                self._stop_urgently()

        threading.Thread(target=stop_when_woken, name="studydb-signals", daemon=True).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
        if preempt_signal:
            signal.signal(preempt_signal, handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, handle)
