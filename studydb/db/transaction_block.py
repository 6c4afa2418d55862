"""The `with` block of a transaction: begins, commits or rolls back, and translates errors."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from studydb.db import faults, sessions, sqlite_file
from studydb.db.transaction import Txn, no_pipeline

if TYPE_CHECKING:
    from studydb.db.database import Database

SLOW_S = 1.0
"""A transaction that took longer than this is reported to `on_slow`; most take milliseconds."""


_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""The flags of code whose frame can wait outside of its thread's stack."""


class TransactionBlock:
    """
    The `with` block of a transaction; see `Database.begin`.

    On PostgreSQL a block that writes sends its statements through a pipeline, and waits only for
    rows that it reads. A single statement that needs no BEGIN is sent without a pipeline. In a
    pipeline, an error is raised at the next wait for rows, or at the COMMIT; the server skips the
    statements after the failed statement.
    """

    _cursor: Any = None  # `__del__` reads it even if Ctrl-C has interrupted `__init__`

    def __init__(
        self, database: "Database", *, write: bool, durable: bool, single: bool, snapshot: bool
    ) -> None:
        self._database = database
        self._write, self._durable, self._snapshot = write, durable, snapshot
        # Behind a pooler a BEGIN is needed, because the timeouts are set inside the transaction.
        self._single = single and database.postgresql and not database.pooler
        self._pipeline: Any = None

    def __enter__(self) -> Txn:
        self._cursor = None  # forget an earlier cursor, which another thread may use by now
        try:
            self._cursor = self._database.connections.take(_frame_of_caller())
            self._began_s = monotonic()
            sync = self._enter_pipeline()
            if not self._single:
                self._start()
            self._txn = self._new_txn(sync)
        except BaseException as error:
            self._undo(error)
            raise
        return self._txn

    def _new_txn(self, sync: Callable[[], None]) -> Txn:
        return Txn(
            self._cursor,
            self._database.engine.dialect,
            clock=self._database.clock,
            observer=self._database.observer,
            prepare=None if self._database.pooler else True,
            durable=self._durable,
            single=self._single,
            sync=sync,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._undo(error)
            return
        try:
            if not self._single:
                self._commit()
            self._leave_pipeline()
        except BaseException as fault:
            self._undo(fault)
            raise
        connections = self._database.connections
        is_reused = self._database.postgresql or not self._is_of_archive()
        cursor, self._cursor = self._cursor, None  # from here on, `__del__` does nothing
        if is_reused:
            connections.give_back(cursor)
        else:
            connections.discard(cursor)  # so that the next transaction opens the file again
        if self._database.on_slow is not None and monotonic() - self._began_s > SLOW_S:
            self._database.on_slow(_operation_of_block(), monotonic() - self._began_s)

    def __del__(self) -> None:
        """Close the connection of a transaction that Ctrl-C has cut short."""
        if self._cursor is not None:
            self._database.connections.discard(self._cursor)

    def _enter_pipeline(self) -> Callable[[], None]:
        """
        Enter a pipeline, if the transaction uses one.

        Returns:
            A function that waits for the answers to all that was sent through the pipeline;
            `no_pipeline` if the transaction uses no pipeline. Until such a wait, the server counts
            the client as sending, not as idle. If the client froze then, the timeout for idle
            clients would not end its transaction.
        """
        if self._single or not self._write or not self._database.postgresql:
            return no_pipeline
        self._pipeline = self._cursor.connection.pipeline()
        sync: Callable[[], None] = self._pipeline.__enter__().sync
        return sync

    def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)

    def _start(self) -> None:
        self._observe("BEGIN")
        if not self._database.postgresql:
            self._database.check_file_unmoved()
            self._cursor.execute("BEGIN IMMEDIATE" if self._write else "BEGIN")
            return
        isolation = ""
        if self._snapshot:
            isolation = " ISOLATION LEVEL REPEATABLE READ"
        elif self._database.pooler:
            isolation = " ISOLATION LEVEL READ COMMITTED"
        access = "" if self._write else " READ ONLY"
        self._cursor.execute(f"BEGIN{isolation}{access}", prepare=False)
        if self._database.pooler:
            version = self._cursor.connection.info.server_version
            read_only = self._database.read_only
            self._cursor.execute(sessions.set_for_transaction(version, read_only=read_only))

    def _commit(self) -> None:
        # On PostgreSQL a block that only reads is committed, too, because psycopg forgets its
        # prepared statements at a ROLLBACK.
        commit = not self._txn.abandoned and (self._write or self._database.postgresql)
        if commit and self._database.postgresql and not self._txn.waits_for_disk:
            self._cursor.execute("SET LOCAL synchronous_commit = off", prepare=False)
        self._end(commit=commit)
        if self._is_of_archive():
            self._cursor.connection.check_unchanged()

    def _is_of_archive(self) -> bool:
        return isinstance(self._cursor.connection, sqlite_file.ArchiveConnection)

    def _end(self, *, commit: bool) -> None:
        if not commit:
            self._roll_back()
            return
        self._observe("COMMIT")
        if self._database.postgresql:
            self._cursor.execute("COMMIT", prepare=False)
        else:
            self._database.check_file_unmoved()
            self._cursor.execute("COMMIT")

    def _undo(self, error: BaseException) -> None:
        """
        Roll back, give the connection back, and raise our error for the driver's `error`.

        A connection that cannot be used again is closed. If the connection is lost (see
        `faults.is_disconnect`), all connections of the pool are closed.
        """
        connections, gone = self._database.connections, faults.is_disconnect(error)
        usable = False
        try:
            usable = self._could_roll_back() and not gone and isinstance(error, Exception)
            usable = usable and not self._is_of_archive()
        finally:
            cursor, self._cursor = self._cursor, None
            if cursor is not None:
                (connections.give_back if usable else connections.discard)(cursor)
        if gone:
            connections.close()
        translated = faults.translate(error, url=self._database.url)
        if translated is not None:
            raise translated from error

    def _could_roll_back(self) -> bool:
        try:
            with suppress(Exception):  # the caller raises the first error
                self._leave_pipeline()
            self._roll_back()
        except Exception:  # noqa: BLE001  the caller raises the first error
            return False
        return True

    def _roll_back(self) -> None:
        self._observe("ROLLBACK")
        if self._database.postgresql:
            self._cursor.connection.rollback()  # the driver then forgets its prepared statements
        elif self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def _observe(self, what: str) -> None:
        if self._database.observer is not None:
            self._database.observer(what)


def _frame_of_caller() -> FrameType | None:
    """
    Return the frame of the `with` statement: the caller of the function that calls this function.

    The result is None for a generator or a coroutine, whose frame is on no stack while it waits.
    """
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    return None if frame is None or frame.f_code.co_flags & _SUSPENDABLE else frame


def _operation_of_block() -> str:
    """Name the operation whose `with` block ends, by the module whose code contains the block."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return module.rpartition(".")[2].replace("_", " ")
