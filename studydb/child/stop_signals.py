"""What SIGTERM, SIGINT and SIGHUP do in the process of a trial."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from studydb.child.running_trial import RunningTrial
from studydb.processes import SIGNAL_SPREAD_S, STOP_SIGNALS

MOST_SIGNALS = 2
"""How many stop signals a trial may get before it is killed."""


class ProcessStopped(BaseException):
    """A stop signal ends this process, which runs no trial now."""


class StopSignals:
    """A stop signal preempts the trial that runs; without a trial it ends the process."""

    def __init__(self) -> None:
        self._trial: RunningTrial | None = None
        self._n_signals = 0
        self._counted_s = 0.0
        self._is_ending = False
        self._is_deferring = False

    def begin(self, trial: RunningTrial) -> None:
        """
        Preempt this trial at the first stop signal.

        The second signal has no effect, because a service manager may signal all processes, and
        the worker, too, signals the trial. A third signal kills the process. Signals within
        `SIGNAL_SPREAD_S` count as one.

        Raises:
            ProcessStopped: A stop signal came before the trial, and code of a library has caught
                the ProcessStopped that the signal raised.
        """
        if self._is_ending:
            raise ProcessStopped
        self._trial, self._n_signals = trial, 0
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    @property
    def sigterm_is_replaced(self) -> bool:
        """Whether the user's code has a handler of its own for SIGTERM; ignoring it is none."""
        return signal.getsignal(signal.SIGTERM) not in (self._handle, signal.SIG_IGN)

    def end(self) -> None:
        """
        End the process at the next stop signal.

        Raises:
            ProcessStopped: A stop signal has come during the trial.
        """
        self._trial = None
        if self._n_signals:
            raise ProcessStopped

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """
        Let no stop signal interrupt the body, in which no trial runs.

        Raises:
            ProcessStopped: After the body, if a stop signal has come.
        """
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
        if self._is_ending:
            raise ProcessStopped

    def ignore(self) -> None:
        """Ignore stop signals, so that none interrupts the last cleanup of this process."""
        self._trial, self._is_ending = None, True

    def _handle(self, number: int, _frame: object) -> None:
        if self._trial is None:
            if self._is_ending:
                return
            self._is_ending = True
            if self._is_deferring:
                return
            raise ProcessStopped
        now_s = time.monotonic()
        if not self._n_signals or now_s - self._counted_s > SIGNAL_SPREAD_S:
            self._n_signals += 1
            self._counted_s = now_s
        if self._n_signals > MOST_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._trial.preempt()
