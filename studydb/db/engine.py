"""
A database and its connections: the recipes for PostgreSQL and SQLite.

SQLite: WAL, synchronous=FULL, and BEGIN IMMEDIATE for every writer, which is what makes claims safe
there: SKIP LOCKED is silently dropped, and the driver's own isolation levels gave duplicate claims
or "database is locked".
"""

import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from studydb.db import faults, version
from studydb.db.transaction import Observer, Txn, no_pipeline
from studydb.db.urls import check_file, mask, read_url
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

POOL_TIMEOUT_S = 30
SQLITE_BUSY_TIMEOUT_S = 5
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


class Database:
    """
    One database, reached through a small pool; safe to share among threads, not across a fork.

    Attributes:
        url: As it may be shown: the password is masked.
        clock: A test's clock; None for the database's own.
        observer: Told every statement, and BEGIN, COMMIT and ROLLBACK; None for nobody.
    """

    def __init__(self, url: URL, *, connections: int = 2, read_only: bool = False) -> None:
        """Prepare a pool; nothing connects before the first transaction."""
        self.secret_url, self.url = url, mask(url)
        self.postgresql = url.get_backend_name() == "postgresql"
        self._pooler = self.postgresql and url.query.get("pooler") == "transaction"
        self._read_only = read_only
        self.engine = self._make_engine(connections)
        self.clock: Callable[[], datetime] | None = None
        self.observer: Observer | None = None
        _databases.add(self)

    def _make_engine(self, connections: int) -> sa.Engine:
        options: dict[str, Any] = {
            "pool_size": connections,
            "max_overflow": 0,
            "pool_timeout": POOL_TIMEOUT_S,
            "pool_reset_on_return": None,  # every block ends its transaction itself
        }
        if self.postgresql:
            url = self.secret_url.difference_update_query(["pooler"])
            engine = sa.create_engine(url, connect_args=self._postgresql_options(), **options)
            sa.event.listen(engine, "connect", self._begin_ourselves)
        else:
            engine = sa.create_engine(
                self.secret_url, paramstyle="named", creator=self._open_sqlite, **options
            )
        return engine

    def _begin_ourselves(self, connection: Any, _record: Any) -> None:
        connection.autocommit = True  # BEGIN and COMMIT are ours, so they travel in the pipeline
        if not self._pooler and connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute(f"SET transaction_timeout = {int(TRANSACTION_TIMEOUT_S * 1000)}")

    def _postgresql_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "studydb",
            "tcp_user_timeout": CONNECT_TIMEOUT_S * 1000,
            "keepalives_idle": 30,
        }
        if not self._read_only and "target_session_attrs" not in self.secret_url.query:
            # After a failover, not the standby; "read-write" would shut out roles that only read.
            options["target_session_attrs"] = "primary"
        if self._pooler:
            return options | {"prepare_threshold": None}
        settings = _TIMEOUTS_MS | {"default_transaction_isolation": r"read\ committed"}
        if self._read_only:
            settings |= {"default_transaction_read_only": "on"}
        else:
            settings |= _INDEX_ONLY
        given = str(self.secret_url.query.get("options", ""))
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return options | {"options": f"{ours} {given}".strip()}

    def _open_sqlite(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rw"
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=SQLITE_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys=ON")
        if self._read_only:
            connection.execute("PRAGMA query_only=ON")
        else:
            connection.execute("PRAGMA synchronous=FULL")
        return connection

    @property
    def path(self) -> Path:
        """The SQLite file."""
        if self.secret_url.database is None:
            raise ValueError(f"{self.url} is not a file.")
        return Path(self.secret_url.database)

    @contextmanager
    def begin(
        self, *, write: bool = True, durable: bool = True, single: bool = False
    ) -> Iterator[Txn]:
        """
        Open a transaction: committed at the end of the block, rolled back when it raises.

        Args:
            write: False for a reader, which on SQLite takes no lock.
            durable: False not to wait for the disk at COMMIT (PostgreSQL), where a crash of the
                server may take the change back: the next durable COMMIT makes it safe, too.
            single: The block runs one chain and nothing else: on PostgreSQL a transaction of its
                own, without BEGIN and COMMIT.

        Raises:
            StorageTransient: The fault passes; the COMMIT may or may not have happened.
            StorageError: The database needs attention.
        """
        try:
            with self._transaction(write=write, durable=durable, single=single) as txn:
                yield txn
        except BaseException as error:
            if not faults.is_driver_error(error):
                raise
            if faults.is_disconnect(error):
                self.engine.dispose()
            translated = faults.translate(error, url=self.url)
            if translated is None:
                raise
            raise translated from error

    @contextmanager
    def _transaction(self, *, write: bool, durable: bool, single: bool) -> Iterator[Txn]:
        alone = single and self.postgresql and not self._pooler  # whose timeouts need a BEGIN
        connection = self.engine.raw_connection()
        try:
            piped = self.postgresql and write and not alone
            with _pipeline(connection) if piped else nullcontext(no_pipeline) as sync:
                if not alone:
                    self._start(connection, write=write)
                txn = Txn(
                    connection,
                    self.engine.dialect,
                    clock=self.clock,
                    observer=self.observer,
                    prepare=None if self._pooler else True,
                    durable=durable,
                    single=alone,
                    sync=sync,
                )
                yield txn
                if not alone:
                    commit = self._commits(txn, write=write)
                    if commit and not txn.waits_for_disk:
                        self._spare_disk(connection)
                    self._end(connection, commit=commit)
        except BaseException as error:
            if (
                not self._could_roll_back(connection)
                or faults.is_disconnect(error)
                or not isinstance(error, Exception)
            ):
                connection.invalidate()
            raise
        finally:
            connection.close()

    def _start(self, connection: Any, *, write: bool) -> None:
        self._observe("BEGIN")
        if not self.postgresql:
            connection.cursor().execute("BEGIN IMMEDIATE" if write else "BEGIN")
            return
        how = "BEGIN" if write else "BEGIN READ ONLY"
        connection.cursor().execute(how, prepare=False)
        if self._pooler:
            connection.cursor().execute(self._pooled_settings(connection))

    def _pooled_settings(self, connection: Any) -> str:
        settings: dict[str, int | str] = _TIMEOUTS_MS | _INDEX_ONLY
        if connection.driver_connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            settings["transaction_timeout"] = int(TRANSACTION_TIMEOUT_S * 1000)
        if self._read_only:
            settings["transaction_read_only"] = "on"
        calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        return f"SELECT {', '.join(calls)}"

    def _commits(self, txn: Txn, *, write: bool) -> bool:
        # A reader's COMMIT changes nothing, and spares the driver from preparing all anew.
        return not txn.abandoned and (write or self.postgresql)

    def _spare_disk(self, connection: Any) -> None:
        if self.postgresql:
            connection.cursor().execute("SET LOCAL synchronous_commit = off", prepare=False)

    def _end(self, connection: Any, *, commit: bool) -> None:
        if not commit:
            self._roll_back(connection)
            return
        self._observe("COMMIT")
        if self.postgresql:
            connection.cursor().execute("COMMIT", prepare=False)
        else:
            connection.cursor().execute("COMMIT")

    def _could_roll_back(self, connection: Any) -> bool:
        try:
            self._roll_back(connection)
        except Exception:  # noqa: BLE001  what led here is raised
            return False
        return True

    def _roll_back(self, connection: Any) -> None:
        self._observe("ROLLBACK")
        if self.postgresql:
            connection.rollback()  # the driver prepares all anew, and must know of it at once
        elif connection.driver_connection.in_transaction:
            connection.cursor().execute("ROLLBACK")

    def _observe(self, what: str) -> None:
        if self.observer is not None:
            self.observer(what)

    def close(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()


@contextmanager
def _pipeline(connection: Any) -> Iterator[Callable[[], None]]:
    """
    Send statements without waiting for each: a writer waits only for rows that it reads.

    Yields what waits for them: not for the rows alone, or the server would take a client that
    freezes for one that is still sending, and let it keep its locks.

    An error comes with the next rows that are read, at the latest with the COMMIT, and what was
    sent after it is skipped by the server. The first error is the one that is raised.
    """
    raised: BaseException | None = None
    try:
        with connection.driver_connection.pipeline() as pipeline:
            try:
                yield pipeline.sync
            except BaseException as error:  # noqa: BLE001  raised again below
                raised = error
    except Exception:
        if raised is None:
            raise
    if raised is not None:
        raise raised


def begin_immediate(connection: sa.Connection) -> None:
    """What an SQLAlchemy transaction emits on SQLite; `Database.begin` does it itself."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _forget_after_fork() -> None:
    for database in list(_databases):
        database.engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_after_fork)


def connect(
    storage: str, *, connections: int = 2, read_only: bool = False, check: bool = True
) -> Database:
    """
    Connect to a database whose schema is the one that this studydb needs.

    Args:
        storage: The URL.
        connections: The most that the pool will open.
        check: False to skip the check of file and schema, for migrations.

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
    if found == version.HEAD:
        return
    if found is None:
        raise StorageMissing(
            f"{database.url} has no studydb tables. Run `studydb db upgrade` on it."
        )
    if found in version.REVISIONS:
        raise SchemaTooOld(
            f"{database.url} has schema {found}, this studydb needs {version.HEAD}. "
            "Run `studydb db upgrade`; workers of the older version must have ended."
        )
    raise SchemaTooNew(
        f"{database.url} has schema {found}, this studydb knows {version.HEAD} at most. "
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
            rows = txn.raw(f"SELECT version_num FROM {version.TABLE}")[1]  # noqa: S608
    except StorageUnreachable:
        raise
    except StorageMissing as error:
        if "no studydb tables" in str(error):
            return None
        raise
    return str(rows[0][0]) if rows else None
