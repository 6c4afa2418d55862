"""Why a worker stops: a signal, a person's drain, or an error such as a long outage."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType


class Interruption:
    """
    Whether and why a worker is stopping; threads wait on it.

    Attributes:
        signal: The first signal that came; None before that.
        is_drained: Whether a person has drained this worker.
        gave_up: The error with which the worker ends; None for no error.
        hurries_since_s: When the first signal or error came, by the monotonic clock; None before.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self.signal: int | None = None
        self.gave_up: str | None = None
        self.hurries_since_s: float | None = None
        self.is_drained = False

    @property
    def is_stopping(self) -> bool:
        """Whether to claim no more trials and to release those that run."""
        return self._stopping.is_set()

    def drain(self) -> None:
        """Stop because a person has drained the worker."""
        self.is_drained = True
        self._stopping.set()

    def give_up(self, why: str) -> None:
        """Stop with an error."""
        self.gave_up = self.gave_up or why
        self._hurry()

    def _hurry(self) -> None:
        self.hurries_since_s = self.hurries_since_s or time.monotonic()
        self._stopping.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the worker is stopping; False after the timeout."""
        return self._stopping.wait(timeout_s)

    def listen(self, at_once: Callable[[int], None]) -> None:
        """
        Handle SIGTERM, SIGINT, and SIGHUP unless nohup ignores it; from the main thread.

        A second signal ends the process. SIGHUP counts neither as the first nor as the second: a
        terminal that closes may send it twice, a service manager together with SIGTERM.

        Args:
            at_once: Called by the second signal, to end the process.
        """

        def handle(number: int, _frame: FrameType | None) -> None:
            was_told = self.signal not in (None, signal.SIGHUP)
            if was_told and number != signal.SIGHUP:
                at_once(number)
            if not was_told:
                self.signal = number
            self._hurry()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, handle)
