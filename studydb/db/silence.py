"""A connection to PostgreSQL that waits only so long for a server that says nothing."""

import math
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import _WaitTimeout
from psycopg.waiting import Ready

Returned = TypeVar("Returned")

_LOOK_S = 0.1
"""Between two looks at the clock while nothing comes; the driver's own interval."""

_FIRST_S = 0.5
"""Nearly every answer is whole by then; until it is, nothing of ours runs in between."""


class SilentServerError(psycopg.OperationalError):
    """
    The server has taken a request and does not answer; what became of the request is unknown.

    The system's keepalives do not notice: a server that is stopped, or that waits for a standby,
    still acknowledges what it is sent.
    """


def for_ever() -> float:
    """Set no bound: a migration takes as long as it takes."""
    return math.inf


class BoundedConnection(psycopg.Connection[Any]):
    """
    Ends a wait once the server has said nothing for too long.

    Attributes:
        longest_silence: Asked again and again during a wait, so that a process that is told to go
            can cut one short; seconds.
    """

    longest_silence: Callable[[], float]

    def __init__(self, *args: Any, **options: Any) -> None:
        """Begin without a bound; connecting has one of its own."""
        super().__init__(*args, **options)
        self.longest_silence = for_ever

    def wait(
        self, gen: PQGen[Returned], interval: float = _LOOK_S, timeout: float | None = None
    ) -> Returned:
        """
        Consume a generator of the driver's.

        Raises:
            SilentServerError: Nothing came for too long. The connection is closed: an answer that
                comes later must not be taken for that to another request.
        """
        try:
            return super().wait(gen, interval, _FIRST_S if timeout is None else timeout)
        except _WaitTimeout:
            if timeout is not None:
                raise
        return super().wait(self._bounded(gen), interval, timeout)

    def _bounded(self, gen: PQGen[Returned]) -> Generator[Any, Ready | int, Returned]:
        silent_since_s = None
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    silent_since_s = None
                else:
                    now_s = time.monotonic()
                    silent_since_s = silent_since_s or now_s
                    self._check_silence(now_s - silent_since_s)
                wanted = gen.send(ready)
        except StopIteration as end:
            returned: Returned = end.value
            return returned

    def _check_silence(self, silent_s: float) -> None:
        if silent_s >= self.longest_silence():
            self.close()
            raise SilentServerError(f"no answer for {silent_s:.0f} s")
