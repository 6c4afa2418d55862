"""A worker whose trials wait at rungs: it reports, saves, ends the attempt, gets the next trial."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import loading
from benchmarks.client import Client
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.lease.held import HeldAttempt
from studydb.study.simulated_worker import checkpoint_without_bytes


class Call(NamedTuple):
    """A timed call: its kind, when it began by the monotonic clock, and how long it took."""

    kind: str
    began_s: float
    took_s: float


class RungWorker:
    """
    A worker with its own connection.

    Attributes:
        calls: The calls that the worker has made, in order.
    """

    def __init__(self, url: str) -> None:
        """Register as a worker, and get a trial."""
        self._client = Client(url)
        self.calls: list[Call] = []
        self._held = self._next()

    def turn(self) -> int:
        """
        Report at the next rung, and return 1, the number of reports.

        If the trial is to pause there, save a checkpoint. If it is to pause or stop, end the
        attempt and get another trial.
        """
        held = self._held
        step = held.next_decision_step
        assert step is not None
        held.add(Result(step, _value(), {}, 1.0))
        self._timed("report", held.flush)
        if held.verdict is not None:
            if held.verdict.action is Action.PAUSE:
                self._timed(
                    "save", lambda: held.save(checkpoint_without_bytes(held, step=step), b"")
                )
            self._timed("end", lambda: held.end(Reason.PREEMPTED))
            self._held = self._next()
        return 1

    def _next(self) -> HeldAttempt:
        claimed = None
        while claimed is None:  # other workers may take the trials that this worker wants
            claimed = self._timed("next trial", self._client.acquirer.acquire)
        return HeldAttempt(self._client.database, self._client.study, claimed)

    def _timed(self, kind: str, call: Callable[[], Any]) -> Any:
        began_s = time.monotonic()
        answer = call()
        self.calls.append(Call(kind, began_s, time.monotonic() - began_s))
        return answer

    def close(self) -> None:
        """Give the trial back, and close the connection."""
        self._held.end(Reason.PREEMPTED)
        self._client.close()


def _value() -> float:
    """A value between the best and the worst of the loaded trials."""
    return random.uniform(*loading.VALUES)
