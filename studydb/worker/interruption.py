"""How a worker is told to go: signals, a person's drain, or a database that stays away."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType


class Interruption:
    """
    Whether and why a worker is to go; threads wait on it.

    Attributes:
        signal: The first signal that came, None if none did.
        is_drained: Whether a person has asked this worker to go.
        gave_up: Why the worker ends with an error, None if it does not.
        hurries_since_s: When a signal came or the worker gave up, on the monotonic clock; None
            while it has time.
    """

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._stopping = threading.Event()
        self.signal: int | None = None
        self.gave_up: str | None = None
        self.hurries_since_s: float | None = None
        self.is_drained = False

    @property
    def is_stopping(self) -> bool:
        """Whether no more trials are to be claimed, and those that run are to be given back."""
        return self._stopping.is_set()

    def drain(self) -> None:
        """Give back what runs and go, because a person has asked for it."""
        self.is_drained = True
        self._stopping.set()

    def give_up(self, why: str) -> None:
        """Go with an error."""
        self.gave_up = self.gave_up or why
        self._hurry()

    def _hurry(self) -> None:
        self.hurries_since_s = self.hurries_since_s or time.monotonic()
        self._stopping.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is time to go; False when the time is over."""
        return self._stopping.wait(timeout_s)

    def listen(self, at_once: Callable[[int], None]) -> None:
        """
        Obey SIGTERM, SIGINT, and SIGHUP unless nohup has it ignored; from the main thread.

        A terminal that closes may send SIGHUP twice, and a service manager beside its SIGTERM: it
        is neither the signal that ends the process at once nor the one before it.

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
