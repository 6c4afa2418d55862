"""
A database and its connections: the recipes for PostgreSQL and SQLite.

SQLite: WAL, synchronous=FULL, and BEGIN IMMEDIATE for every writer, which is what makes claims safe
there: SKIP LOCKED is silently dropped, and the driver's own isolation levels gave duplicate claims
or "database is locked".
"""

import os
import sqlite3
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import URL

from studydb.artifacts import Locations
from studydb.db import faults, revisions, sqlite_file
from studydb.db.connections import Connections
from studydb.db.silence import BoundedConnection
from studydb.db.transaction import Observer, Txn, no_pipeline
from studydb.db.types import load_json
from studydb.db.urls import check_encoding, check_file, mask, read_url
from studydb.domain.errors import (
    SchemaTooNew,
    SchemaTooOld,
    StorageError,
    StorageMissing,
    StorageUnreachable,
    UsageError,
)

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 60
IDLE_IN_TRANSACTION_TIMEOUT_S = 10
"""A frozen client would hold its rows for ever."""

LONGEST_SILENCE_S = STATEMENT_TIMEOUT_S + 15
"""
No statement of ours takes longer, but a COMMIT may: it is not under the server's statement_timeout,
and waits for a synchronous standby for ever.
"""

SQLITE_OLDEST = (3, 37, 0)

TRANSACTION_TIMEOUT_S = 120
"""For a client that freezes while it sends, not idle in the server's eyes; PostgreSQL 17 has it."""

_TRANSACTION_TIMEOUT_SINCE = 170000

_TIMEOUTS_MS = {
    "lock_timeout": LOCK_TIMEOUT_S * 1000,
    "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S * 1000,
}

_INDEX_ONLY = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
"""
Every statement of ours has its index. A table that was small when it was last analysed would be
scanned from then on by plans that outlive its growth: 9 million rows read over 1,900 trials.
"""

_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _longest_silence() -> float:
    return LONGEST_SILENCE_S


class Database:
    """
    One database, reached through a small pool; safe to share among threads, not across a fork.

    Attributes:
        url: As it may be shown: the password is masked.
        pooler: Whether a transaction pooler is between: then a session keeps nothing.
        engine: SQLAlchemy's, for migrations; it opens the connections, and keeps none.
        longest_silence: How long PostgreSQL may leave a request without an answer; asked while one
            is waited for.
        clock: A test's clock; None for the database's own.
        observer: Told every statement, and BEGIN, COMMIT and ROLLBACK; None for nobody.
        no_queue_until_s: Up to this `monotonic()` asks go past their queue; see `operations/ask`.
    """

    def __init__(self, url: URL, *, connections: int = 2, read_only: bool = False) -> None:
        """Prepare a pool; nothing connects before the first transaction."""
        self.secret_url, self.url = url, mask(url)
        self.postgresql = url.get_backend_name() == "postgresql"
        self.pooler = self.postgresql and url.query.get("pooler") == "transaction"
        self.read_only = read_only
        self.engine = self._make_engine()
        self.connections = Connections(self._open_cursor, most=connections, url=self.url)
        self._file: tuple[int, int] | None = None
        self.longest_silence: Callable[[], float] = _longest_silence
        self.clock: Callable[[], datetime] | None = None
        self.observer: Observer | None = None
        self.no_queue_until_s = 0.0
        _databases.add(self)

    def _make_engine(self) -> sa.Engine:
        if self.postgresql:
            engine = sa.create_engine(
                self.secret_url.difference_update_query(["pooler"]),
                connect_args=self._postgresql_options(),
                json_deserializer=load_json,
                poolclass=sa.pool.NullPool,
            )
            sa.event.listen(engine, "do_connect", self._connect_postgresql)
            return engine
        return sa.create_engine(
            self.secret_url,
            paramstyle="named",
            creator=self._open_sqlite,
            json_deserializer=load_json,
            poolclass=sa.pool.NullPool,
        )

    def _open_cursor(self) -> Any:
        pooled = self.engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        if not self.postgresql:
            return connection.cursor()
        try:
            check_encoding(connection.info.parameter_status("server_encoding"), self.secret_url)
        except BaseException:
            connection.close()
            raise
        connection.autocommit = True  # BEGIN and COMMIT are ours, so they travel in the pipeline
        if not self.pooler and connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute(f"SET transaction_timeout = {int(TRANSACTION_TIMEOUT_S * 1000)}")
        return psycopg.RawCursor(connection)

    def _connect_postgresql(
        self, _dialect: Any, _record: Any, arguments: Any, options: Any
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.longest_silence = self.longest_silence
        return connection

    def _postgresql_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "studydb",
            "client_encoding": "UTF8",  # whatever PGCLIENTENCODING or the role's setting says
            "tcp_user_timeout": CONNECT_TIMEOUT_S * 1000,
            "keepalives_idle": 30,
        }
        if not self.read_only and "target_session_attrs" not in self.secret_url.query:
            # After a failover, not the standby; "read-write" would shut out roles that only read.
            options["target_session_attrs"] = "primary"
        if self.pooler:
            return options | {"prepare_threshold": None}
        settings = _TIMEOUTS_MS | {"default_transaction_isolation": r"read\ committed"}
        if self.read_only:
            settings |= {"default_transaction_read_only": "on"}
        else:
            settings |= _INDEX_ONLY
        given = str(self.secret_url.query.get("options", ""))
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return options | {"options": f"{ours} {given}".strip()}

    def _open_sqlite(self) -> sqlite3.Connection:
        connection = sqlite_file.open_file(self.path, read_only=self.read_only)
        self._file = self._file or self._file_at_path()
        return connection

    def _file_at_path(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.secret_url.database or "")  # noqa: PTH116  at every transaction
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def check_place(self) -> None:
        """
        Make sure that the SQLite file that is open still is the one at its path.

        Raises:
            StorageMissing: It was moved, deleted or replaced; what is written now is lost.
        """
        found = self._file_at_path()
        if found == self._file:
            return
        fact = "was moved or deleted" if found is None else "was replaced by another file"
        raise StorageMissing(
            f"{self.url} {fact} while this process used it, and nothing more is written to it. "
            "Put the file back where it was, or leave the new one there, and start again."
        )

    @property
    def path(self) -> Path:
        """The SQLite file."""
        if self.secret_url.database is None:
            raise ValueError(f"{self.url} is not a file.")
        return Path(self.secret_url.database)

    @property
    def locations(self) -> Locations:
        """Where the logs and checkpoints of its studies lie."""
        return Locations(None if self.postgresql else self.path)

    def begin(self, *, write: bool = True, durable: bool = True, single: bool = False) -> "Block":
        """
        Open a transaction: committed at the end of the block, rolled back when it raises.

        Args:
            write: False for a reader, which on SQLite takes no lock.
            durable: False not to wait for the disk at COMMIT (PostgreSQL), where a crash of the
                server may take the change back: the next durable COMMIT makes it safe, too.
            single: The block runs one statement or chain: on PostgreSQL that is a transaction by
                itself, without BEGIN and COMMIT.

        Raises:
            StorageTransient: The fault passes; the COMMIT may or may not have happened.
            StorageError: The database needs attention.
        """
        return Block(self, write=write, durable=durable, single=single)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.connections.close()


class Block:
    """
    The `with` block of a transaction; see `Database.begin`.

    A writer of PostgreSQL sends its statements through a pipeline, without waiting for each: only
    for rows that it reads. An error comes with the next rows, at the latest with the COMMIT, and
    what was sent after it is skipped by the server.
    """

    def __init__(self, database: Database, *, write: bool, durable: bool, single: bool) -> None:
        """Prepare a transaction; nothing is sent before the block begins."""
        self._database = database
        self._write, self._durable = write, durable
        self._alone = single and database.postgresql and not database.pooler  # its timeouts: BEGIN
        self._cursor: Any = None
        self._pipeline: Any = None

    def __enter__(self) -> Txn:
        """Take a connection and begin."""
        self._cursor = None  # that of an earlier use is somebody else's by now
        try:
            self._cursor = self._database.connections.take()
            sync = self._enter_pipeline()
            if not self._alone:
                self._start()
            self._txn = self._join(sync)
        except BaseException as error:
            self._undo(error)
            raise
        return self._txn

    def _join(self, sync: Callable[[], None]) -> Txn:
        return Txn(
            self._cursor,
            self._database.engine.dialect,
            clock=self._database.clock,
            observer=self._database.observer,
            prepare=None if self._database.pooler else True,
            durable=self._durable,
            single=self._alone,
            sync=sync,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit and give the connection back; on an error roll back."""
        if error is not None:
            self._undo(error)
            return
        try:
            if not self._alone:
                self._commit()
            self._leave_pipeline()
        except BaseException as fault:
            self._undo(fault)
            raise
        connections = self._database.connections
        if self._database.postgresql or not self._is_of_archive():
            connections.give_back(self._cursor)
        else:
            connections.discard(self._cursor)  # the next one looks anew

    def _enter_pipeline(self) -> Callable[[], None]:
        """
        Enter the pipeline, if there is one.

        Returns:
            What waits for all that was sent: not for the rows alone, or the server would take a
            client that freezes for one that is still sending, and let it keep its locks.
        """
        if self._alone or not self._write or not self._database.postgresql:
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
            self._database.check_place()
            self._cursor.execute("BEGIN IMMEDIATE" if self._write else "BEGIN")
            return
        self._cursor.execute("BEGIN" if self._write else "BEGIN READ ONLY", prepare=False)
        if self._database.pooler:
            self._cursor.execute(self._pooled_settings())

    def _pooled_settings(self) -> str:
        settings: dict[str, int | str] = _TIMEOUTS_MS | _INDEX_ONLY
        if self._cursor.connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            settings["transaction_timeout"] = int(TRANSACTION_TIMEOUT_S * 1000)
        if self._database.read_only:
            settings["transaction_read_only"] = "on"
        calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        return f"SELECT {', '.join(calls)}"

    def _commit(self) -> None:
        # A reader's COMMIT changes nothing, and spares the driver from preparing all anew.
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
            self._database.check_place()
            self._cursor.execute("COMMIT")

    def _undo(self, error: BaseException) -> None:
        """Roll back, give the connection back or up, and raise what a driver's error means."""
        connections, gone = self._database.connections, faults.is_disconnect(error)
        usable = False
        try:
            usable = self._could_roll_back() and not gone and isinstance(error, Exception)
            usable = usable and not self._is_of_archive()
        finally:
            if self._cursor is not None:
                (connections.give_back if usable else connections.discard)(self._cursor)
        if gone:
            connections.close()
        translated = faults.translate(error, url=self._database.url)
        if translated is not None:
            raise translated from error

    def _could_roll_back(self) -> bool:
        try:
            with suppress(Exception):  # what led here came first
                self._leave_pipeline()
            self._roll_back()
        except Exception:  # noqa: BLE001  what led here is raised
            return False
        return True

    def _roll_back(self) -> None:
        self._observe("ROLLBACK")
        if self._database.postgresql:
            self._cursor.connection.rollback()  # the driver prepares all anew: it must know at once
        elif self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def _observe(self, what: str) -> None:
        if self._database.observer is not None:
            self._database.observer(what)


def begin_immediate(connection: sa.Connection) -> None:
    """What an SQLAlchemy transaction emits on SQLite; `Database.begin` does it itself."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _forget_after_fork() -> None:
    for database in list(_databases):
        database.connections.forget()


os.register_at_fork(after_in_child=_forget_after_fork)


def connect(
    storage: str,
    *,
    connections: int = 2,
    read_only: bool = False,
    check: bool = True,
    longest_silence: Callable[[], float] | None = None,
) -> Database:
    """
    Connect to a database whose schema is the one that this studydb needs.

    Args:
        storage: The URL.
        connections: The most that the pool will open.
        check: False to skip the check of file and schema, for migrations.
        longest_silence: See `Database`; None for the usual bound.

    Raises:
        UsageError: The URL is none of ours.
        StorageError: Missing, unreachable, too old, too new: each names its cure.
    """
    url = read_url(storage)
    if url.get_backend_name() == "sqlite" and sqlite3.sqlite_version_info < SQLITE_OLDEST:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old; studydb needs 3.37 for its claims."
        )
    if url.query.get("pooler", "transaction") != "transaction":
        raise UsageError("The storage URL's `pooler` can only be `transaction`.")
    database = Database(url, connections=connections, read_only=read_only)
    if longest_silence is not None:
        database.longest_silence = longest_silence
    if check:
        try:
            check_schema(database)
        except BaseException:
            database.close()
            raise
    return database


def check_schema(database: Database) -> None:
    """
    Hold the database's schema against this studydb's.

    Raises:
        StorageMissing: No database or no studydb tables in it.
        SchemaTooOld: `studydb db upgrade` is needed.
        SchemaTooNew: This studydb is older than the schema.
    """
    found = current_version(database)
    if found == revisions.HEAD:
        return
    if found is None:
        raise StorageMissing(
            f"{database.url} has no studydb tables. Run `studydb db upgrade` on it."
        )
    if found in revisions.REVISIONS:
        raise SchemaTooOld(
            f"{database.url} has schema {found}, this studydb needs {revisions.HEAD}. "
            "Run `studydb db upgrade`; workers of the older version must have ended."
        )
    raise SchemaTooNew(
        f"{database.url} has schema {found}, this studydb knows {revisions.HEAD} at most. "
        "Upgrade studydb on this machine."
    )


def current_version(database: Database) -> str | None:
    """
    The schema's revision; None when there are no studydb tables.

    Raises:
        StorageMissing: There is no such file or database.
    """
    if not database.postgresql:
        check_file(database.path)
        if not database.path.exists():
            raise StorageMissing(
                f"There is no database at {database.path}. `studydb create` or "
                "`studydb db upgrade` makes one; or give --storage or $STUDYDB_STORAGE."
            )
    try:
        with database.begin(write=False) as txn:
            rows = txn.raw(f"SELECT version_num FROM {revisions.TABLE}")[1]  # noqa: S608
    except StorageUnreachable:
        raise
    except StorageMissing as error:
        if "no studydb tables" in str(error):
            return None
        raise
    return str(rows[0][0]) if rows else None
