"""A connection to PostgreSQL that bounds how long it waits for a silent server."""

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
"""How often the clock is read while nothing comes; the driver's interval, too."""

_FIRST_S = 0.5
"""Nearly every answer is complete by then, and is read by the driver's loop without ours."""


class SilentServerError(psycopg.OperationalError):
    """
    The server has taken a request and does not answer; whether it did the request is unknown.

    TCP keepalives do not detect this: the system of a server that is stopped, or that waits for a
    standby, still acknowledges packets.
    """


def for_ever() -> float:
    """No bound: a migration may take hours."""
    return math.inf


class BoundedConnection(psycopg.Connection[Any]):
    """
    Ends a wait after the server has been silent for too long.

    Attributes:
        longest_silence: Returns the bound in seconds. It is called repeatedly during a wait, so
            that a process that is to end can shorten it.
    """

    longest_silence: Callable[[], float]

    def __init__(self, *args: Any, **options: Any) -> None:
        """Connect without this bound; `connect_timeout` bounds connecting."""
        super().__init__(*args, **options)
        self.longest_silence = for_ever

    def wait(
        self, gen: PQGen[Returned], interval: float = _LOOK_S, timeout: float | None = None
    ) -> Returned:
        """
        Consume a generator of the driver's.

        Raises:
            SilentServerError: Nothing came for too long. The connection is closed, so that a late
                answer is not taken for the answer to another request.
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
