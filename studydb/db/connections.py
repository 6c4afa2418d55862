"""The pool of a database's connections; a connection is opened when needed, and kept."""

import _thread
import inspect
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from studydb.domain.errors import StorageBusy

if TYPE_CHECKING:
    import psycopg

WAIT_S = 30.0
FORK_WAIT_S = 10.0
"""
The longest time that a fork waits for the lock of a pool. The fork then waits at most as long for
the transactions of other threads; most transactions take milliseconds.
"""

REPEAT_S = 0.05
"""If Ctrl-C came while a fork waited, the Ctrl-C is repeated this many seconds after the fork."""


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
_forking = threading.RLock()  # a signal handler may fork while a fork waits
"""Held during a fork, and while a pool is added to `_of_this_process`."""

_held: "list[list[Connections]]" = []
"""The pools that are held for each fork under way; `_forking` protects the list."""

_interrupted = threading.Event()
"""Set if Ctrl-C came while a fork waited."""


def new_cursor(connection: "psycopg.Connection[Any] | sqlite3.Connection") -> Cursor:
    """Make a cursor whose SQL has the database's own binds: $1 on PostgreSQL, :name on SQLite."""
    if isinstance(connection, sqlite3.Connection):
        return cast("Cursor", connection.cursor())
    from psycopg import RawCursor  # noqa: PLC0415  SQLite needs no psycopg

    return cast("Cursor", RawCursor(connection))


class _Use(NamedTuple):
    """
    Who uses a connection.

    Attributes:
        frame: The frame whose `with` block uses the connection; None if `take` was given none. The
            frame's id would not do: Python gives the id to another frame once this frame is freed.
        n_closed: How often the pool had been closed when the connection was taken.
    """

    thread: int
    frame: FrameType | None
    n_closed: int


class Connections:
    """
    A pool of cursors, each with its own connection; threads may share the pool.

    Cursors are kept, because a cursor repeats its last statement faster than a new cursor runs it.
    A forked process opens its own connections.

    Ctrl-C can interrupt a method after any call that it makes, also just before a cursor is given
    back. `discard_interrupted` closes the connections that are then left in use.
    """

    def __init__(
        self, open_cursor: Callable[[], Cursor], *, limit: int, url: str, waits_at_fork: bool
    ) -> None:
        """
        Prepare the pool without opening a connection.

        Args:
            limit: How many connections may be open at a time.
            url: The database's URL, with its password masked.
            waits_at_fork: Whether a fork waits until no thread uses a connection. SQLite keeps its
                locks in the process's memory: a child that inherits a lock waits for ever.
        """
        self._open, self._limit, self._url = open_cursor, limit, url
        self.waits_at_fork = waits_at_fork
        self.forget()
        with _forking:
            _of_this_process.add(self)

    def forget(self) -> None:
        """Drop all connections without closing them: after a fork they belong to the parent."""
        self._free: list[Cursor] = []
        self._n_closed = 0  # calls of `close`
        self._in_use: dict[object, _Use] = {}  # by cursor, or by `place` until the cursor is opened
        self._lock = threading.RLock()  # the garbage collector may call `discard` at any time
        self._given_back = threading.Condition(self._lock)
        self._n_waiting = 0

    def take(self, frame: FrameType | None = None) -> Cursor:
        """
        Take the cursor that was given back last, or open one.

        Args:
            frame: The frame whose `with` block will use the cursor. None if no `with` block uses
                the cursor, or if the block is in a generator or a coroutine, whose frame leaves the
                stack while it waits.

        Raises:
            StorageBusy: No cursor became free for this thread within 30 s.
        """
        if self._in_use:
            self.discard_interrupted()
        with self._lock:
            if not self._has_place():
                self._wait()
            use = _Use(threading.get_ident(), frame, self._n_closed)
            if self._free:
                # These three lines call no function, so Ctrl-C cannot come between them.
                cursor = self._free[-1]
                self._in_use[cursor] = use
                del self._free[-1]
                return cursor
            place = object()  # stands for the cursor in `_in_use` until it is opened
            self._in_use[place] = use
        try:
            cursor = self._open()
            with self._lock:
                self._in_use[cursor] = use
            return cursor
        finally:
            self._release(place)

    def _has_place(self) -> bool:
        return bool(self._free) or len(self._in_use) < self._limit

    def _wait(self) -> None:
        self._n_waiting += 1
        try:
            if not self._given_back.wait_for(self._has_place, WAIT_S):
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
            use = self._in_use.get(cursor)
            is_current = use is not None and use.n_closed == self._n_closed
            if is_current:
                del self._in_use[cursor]
                self._free.append(cursor)
                self._notify()
        if not is_current:
            self.discard(cursor)

    def discard(self, cursor: Cursor) -> None:
        """Close a cursor's connection, which may be broken, and free its place in the pool."""
        if cursor not in self._in_use:
            return  # it was discarded before, or was taken before a fork and is the parent's
        try:
            _hang_up(cursor)
        finally:
            self._release(cursor)

    def discard_interrupted(self) -> None:
        """
        Close the connections of this thread's `with` blocks that no longer run.

        The method looks only at the connections and the stack of this thread, because the stack of
        another thread changes while it is read. To look at other threads is not necessary: Ctrl-C
        interrupts only the main thread.
        """
        thread = threading.get_ident()
        uses = [item for item in list(self._in_use.items()) if item[1].thread == thread]
        frames = set(_stack(inspect.currentframe())) if uses else set()
        for used, use in uses:
            if use.frame is not None and use.frame not in frames:
                _hang_up(used)
                self._release(used)

    def _release(self, used: object) -> None:
        with self._lock:
            self._in_use.pop(used, None)
            self._notify()

    def _notify(self) -> None:
        if self._n_waiting:  # this check is cheaper than notify(), and threads rarely wait
            self._given_back.notify_all()

    def close(self) -> None:
        """Close all connections; one that is in use is closed when it is given back."""
        with self._lock:
            free, self._free = self._free, []
            self._n_closed += 1
        for cursor in free:
            _hang_up(cursor)

    def hold(self) -> None:
        """
        Wait until no other thread uses a cursor; let no other thread take one until `let_go`.

        The waits for the lock and for the threads last up to `FORK_WAIT_S` each. If the lock is not
        free in this time, other threads can still take cursors.
        """
        if not self._lock.acquire(timeout=FORK_WAIT_S):
            return
        thread = threading.get_ident()
        self._n_waiting += 1
        try:
            self._given_back.wait_for(
                lambda: all(use.thread == thread for use in self._in_use.values()), FORK_WAIT_S
            )
        finally:
            self._n_waiting -= 1

    def let_go(self) -> None:
        """Let other threads take cursors again, if `hold` got the lock."""
        with suppress(RuntimeError):
            self._lock.release()


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of this thread, and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _hang_up(used: Any) -> None:
    """Close the connection of a cursor; ignore the `place` of a cursor that is being opened."""
    with suppress(Exception):
        used.connection.close()


def _before_fork() -> None:
    _forking.acquire()
    held: list[Connections] = []
    _held.append(held)
    for connections in list(_of_this_process):
        if connections.waits_at_fork:
            held.append(connections)  # before the wait, which Ctrl-C can interrupt
            try:
                connections.hold()
            except KeyboardInterrupt:
                # Python would ignore the exception here, and fork at once.
                _interrupted.set()
                held.append(connections)  # `hold` may take the lock a second time
                connections.hold()


def _after_fork_in_parent() -> None:
    for connections in _held.pop() if _held else ():
        connections.let_go()
    with suppress(RuntimeError):  # Ctrl-C has interrupted `_before_fork` before it took the lock
        _forking.release()
    if _interrupted.is_set():
        _interrupted.clear()
        # Python ignores an exception in this function, too, so Ctrl-C is repeated after its end.
        repeat = threading.Timer(REPEAT_S, _thread.interrupt_main)
        repeat.daemon = True
        repeat.start()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603  another thread of the parent may have waited for it
    _forking = threading.RLock()
    _held.clear()
    _interrupted.clear()
    for connections in list(_of_this_process):
        connections.forget()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
