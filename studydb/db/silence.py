"""A connection to PostgreSQL that bounds how long it waits for a silent server."""

import select
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import _WaitTimeout
from psycopg.waiting import Ready

from studydb.db.sessions import for_ever

Returned = TypeVar("Returned")

_LOOK_S = 0.1
"""Seconds between two reads of the clock during a wait; the driver uses the same interval."""

_FIRST_S = 0.5
"""
The seconds of a wait before the server's silence is measured. Most answers come earlier, and the
driver's loop is faster without the measurement.
"""


_NOT_READY = cast("Ready", 0)


class SilentServerError(psycopg.OperationalError):
    """
    The server has not answered a request in time; it may have executed the request.

    TCP keepalives do not detect such a server, because the operating system acknowledges packets
    even while the server is stopped or waits for a standby.
    """


class BoundedConnection(psycopg.Connection[Any]):
    """
    A connection that ends a wait when the server has been silent for too long.

    Attributes:
        longest_silence: Returns the bound in seconds. It is called repeatedly during a wait, so a
            process that must end can shorten the wait.
    """

    longest_silence: Callable[[], float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.longest_silence = for_ever
        self._cursors: dict[bytes, psycopg.RawCursor[Any]] = {}

    def cursor_of(self, sql: bytes) -> psycopg.RawCursor[Any]:
        """
        Return the cursor that has run this statement before, or a new one.

        A cursor remembers the converters for the binds and columns of its last statement. If all
        statements shared a cursor, a trial would take 3 % more instructions.
        """
        cursor = self._cursors.get(sql)
        if cursor is None:
            cursor = self._cursors[sql] = psycopg.RawCursor(self)
        return cursor

    def wait(
        self, gen: PQGen[Returned], interval: float = _LOOK_S, timeout: float | None = None
    ) -> Returned:
        """
        Run a generator of the driver until it returns.

        Raises:
            SilentServerError: Nothing came from the server for `longest_silence` seconds. The
                connection is closed, because the next request would get the late answer.
        """
        try:
            returned = super().wait(gen, interval, _FIRST_S if timeout is None else timeout)
        except _WaitTimeout:
            if timeout is not None:
                raise
            returned = super().wait(self._bounded(gen), interval, timeout)
        if self._pipeline is not None:
            self._send_rest()
        return returned

    def _send_rest(self) -> None:
        """
        Send what is left in libpq's buffer.

        In a pipeline the driver stops sending when the socket is full, and then only reads (psycopg
        3.3, `_pipeline_communicate`). Without this function the server would wait for the rest of a
        large statement, and the client for the answer.
        """
        silent_since_s = time.monotonic()
        while self.pgconn.flush():
            readable, writable, _ = select.select([self.fileno()], [self.fileno()], [], _LOOK_S)
            if readable:
                self.pgconn.consume_input()  # the server may read no more until we have read
            if readable or writable:
                silent_since_s = time.monotonic()
            self._check_silence(time.monotonic() - silent_since_s)

    def _bounded(self, gen: PQGen[Returned]) -> Generator[Any, Ready | int, Returned]:
        silent_since_s = None
        try:
            wanted = gen.send(_NOT_READY)  # the driver sends this, too; `next` would send None
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
