"""The pool of a database's connections; a connection is opened when needed, and kept."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from studydb.domain.errors import StorageBusy

if TYPE_CHECKING:
    import psycopg

WAIT_S = 30.0


class Cursor(Protocol):
    """The methods that the cursors of both drivers have."""

    @property
    def connection(self) -> Any: ...

    @property
    def description(self) -> Sequence[Any] | None: ...

    def execute(self, sql: Any, params: Any = ..., /, **options: Any) -> "Cursor": ...

    def executemany(self, sql: Any, rows: Any, /) -> object: ...

    def fetchone(self) -> tuple[Any, ...] | None: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


_of_this_process: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def new_cursor(connection: "psycopg.Connection[Any] | sqlite3.Connection") -> Cursor:
    """Make a cursor whose SQL has the database's own binds: $1 on PostgreSQL, :name on SQLite."""
    if isinstance(connection, sqlite3.Connection):
        return cast("Cursor", connection.cursor())
    from psycopg import RawCursor  # noqa: PLC0415  SQLite needs no psycopg

    return cast("Cursor", RawCursor(connection))


class Connections:
    """
    A pool of cursors, each with its own connection; threads may share the pool.

    Cursors are kept, because a cursor repeats its last statement faster than a new cursor runs it.
    A forked process opens its own connections.
    """

    def __init__(self, open_cursor: Callable[[], Cursor], *, limit: int, url: str) -> None:
        """
        Prepare the pool without opening a connection.

        Args:
            limit: How many connections may be open at a time.
            url: The database's URL, with its password masked.
        """
        self._open, self._limit, self._url = open_cursor, limit, url
        self.forget()
        _of_this_process.add(self)

    def forget(self) -> None:
        """Drop all connections without closing them: after a fork they belong to the parent."""
        self._free: list[Cursor | None] = [None] * self._limit  # None: no open connection
        self._n_closed = 0  # calls of `close`
        self._in_use: dict[Cursor, int] = {}  # `_n_closed` when the cursor was taken
        self._lock = threading.Lock()
        self._given_back = threading.Condition(self._lock)
        self._n_waiting = 0

    def take(self) -> Cursor:
        """
        Take the cursor that was given back last, or open one.

        Raises:
            StorageBusy: No cursor became free for this thread within 30 s.
        """
        with self._lock:
            if not self._free:
                self._wait()
            cursor, n_closed = self._free.pop(), self._n_closed
        if cursor is None:
            try:
                cursor = self._open()
            except BaseException:
                with self._lock:
                    self._put_back(None)
                raise
        self._in_use[cursor] = n_closed
        return cursor

    def _wait(self) -> None:
        self._n_waiting += 1
        try:
            if not self._given_back.wait_for(lambda: self._free, WAIT_S):
                raise StorageBusy(
                    f"Other threads are using all connections of this Study to {self._url}. Use "
                    "the study in fewer threads at a time, or load the study again in some threads."
                )
        finally:
            self._n_waiting -= 1

    def give_back(self, cursor: Cursor) -> None:
        """
        Put back a cursor whose transaction has ended.

        If the pool was closed since the cursor was taken, close the cursor's connection instead.
        """
        with self._lock:
            is_current = self._in_use.get(cursor) == self._n_closed
            if is_current:
                del self._in_use[cursor]
                self._put_back(cursor)
        if not is_current:
            self.discard(cursor)

    def discard(self, cursor: Cursor) -> None:
        """Close a cursor's connection, which may be broken, and free its place in the pool."""
        if self._in_use.pop(cursor, None) is None:
            return  # the cursor was taken before a fork, and belongs to the parent
        try:
            _hang_up(cursor)
        finally:
            with self._lock:
                self._put_back(None)

    def _put_back(self, cursor: Cursor | None) -> None:
        self._free.append(cursor)
        if self._n_waiting:  # this check is cheaper than notify(), and threads rarely wait
            self._given_back.notify()

    def close(self) -> None:
        """Close all connections; one that is in use is closed when it is given back."""
        with self._lock:
            free, self._free = self._free, [None] * len(self._free)
            self._n_closed += 1
        for cursor in free:
            if cursor is not None:
                _hang_up(cursor)


def _hang_up(cursor: Cursor) -> None:
    with suppress(Exception):
        cursor.connection.close()


def _forget_all() -> None:
    for connections in list(_of_this_process):
        connections.forget()


os.register_at_fork(after_in_child=_forget_all)
