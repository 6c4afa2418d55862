"""
Make and change the schema by Alembic's migrations.

The migrations are in the installed package, or in the checkout's folder `alembic`. Several
processes may call `upgrade` at the same time; one of them migrates. Each process reads the version
without a lock. If the version is old, the process takes a lock, reads the version again, and
upgrades if the version is still old. On SQLite the lock is BEGIN IMMEDIATE. On PostgreSQL it is an
advisory lock; a process that has waited 20 s for the lock goes on without it (see
`_lock_database`).
"""

import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import alembic.command
import sqlalchemy as sa
from alembic.config import Config
from alembic.util import CommandError

from studydb.db import faults, revisions, wide_view_sql
from studydb.db.compatibility import (
    check_schema,
    current_version,
    refuse_foreign_tables,
    refuse_newer,
)
from studydb.db.connecting import connect
from studydb.db.database import Database
from studydb.db.role_script import STABLE_VIEWS
from studydb.db.schema import study
from studydb.db.sessions import for_ever
from studydb.db.urls import check_file
from studydb.domain.errors import StorageBusy, StorageDenied, StorageError, UsageError
from studydb.domain.roles import Role
from studydb.domain.text.display import counted, shortened

SQLITE_BUSY_TIMEOUT_S = 60.0
ADVISORY_LOCK_TIMEOUT_S = 20.0

TABLE_LOCK_S = (0.5, 60.0)
"""
How long a try to lock all tables may last: the first try, and the longest of the later tries.

The first try is shorter than PostgreSQL's `deadlock_timeout` of 1 s. So the server does not look
for a deadlock, and ends no worker's transaction. An autovacuum may hold the lock of a table. The
server cancels this autovacuum only after the migration has waited for 1 s, so later tries are
longer. During a later try the server may end a worker's transaction.
"""

TABLE_LOCK_RETRY_S = (0.1, 0.5)
"""The shortest and longest wait before the next try. Workers go on during the wait."""

WAL_RETRY_S = (0.01, 0.1)
"""The shortest and longest wait before the next try to set an SQLite file's journal mode."""

_process_lock = threading.Lock()


def upgrade(storage: str) -> str:
    """
    Bring a database to this studydb's schema, and make an SQLite file that is missing.

    Returns:
        The revision that the database had before; empty if it had no studydb tables.

    Raises:
        SchemaTooNew: The database's schema is newer than this studydb.
        StorageError: The database cannot be reached or written, or belongs to another program.
    """
    with _unchecked(storage) as database:
        if not database.postgresql:
            _make_file(database.path)
        before = current_version(database)
        refuse_newer(database, before)
        if before is None:
            refuse_foreign_tables(database)
        if before != revisions.HEAD:
            with _migrating(database) as connection, _without_wide_views(connection):
                alembic.command.upgrade(_config(connection), "head")  # reads the version again
        return before or ""


def make_sqlite(storage: str) -> None:
    """Make an SQLite database and its tables if they are missing; do nothing on PostgreSQL."""
    with _unchecked(storage) as database:
        has_tables = database.postgresql or (database.path.exists() and current_version(database))
    if not has_tables:
        upgrade(storage)


def downgrade(storage: str, revision: str) -> None:
    """
    Take the schema back to an older revision, and drop all wide views.

    Args:
        revision: The revision, or "base" to drop all tables.

    Raises:
        UsageError: There is no such revision.
        SchemaTooNew, StorageError: See `upgrade`.
    """
    if revision != "base" and revision not in revisions.REVISIONS:
        known = ", ".join((*revisions.REVISIONS, "base"))
        raise UsageError(f"There is no revision {revision!r}; there are {known}.")
    with _unchecked(storage) as database:
        refuse_newer(database, current_version(database))
        with _migrating(database) as connection:
            runner = _TextRunner(connection)
            wide_view_sql.drop(runner, wide_view_sql.found(runner))
            alembic.command.downgrade(_config(connection), revision)


def current(storage: str) -> str:
    """Read the database's revision; empty if it has no studydb tables."""
    with _unchecked(storage) as database:
        return current_version(database) or ""


def check(storage: str) -> None:
    """
    Check the schema's revision, and that no table, column, index or view is missing.

    Raises:
        StorageError: See `check_schema`; or something is missing, for example after a restore that
            ended early.
    """
    with _unchecked(storage) as database:
        check_schema(database)
        with database.engine.connect() as connection:
            missing = _missing(sa.inspect(connection))
        if missing:
            raise StorageError(
                f"{database.url} has schema {revisions.HEAD}, but lacks "
                f"{shortened(', '.join(missing), 200)}: a restore ended early, or another program "
                "has changed the schema. Restore a backup into a new database."
            )


def _missing(found: sa.Inspector) -> list[str]:
    """List what the database lacks of studydb's schema, such as "the column trial.uuid"."""
    views, tables = found.get_view_names(), found.get_table_names()
    missing = [f"the view {name}" for name in STABLE_VIEWS if name not in views]
    for name, table in study.metadata.tables.items():
        if name not in tables:
            missing.append(f"the table {name}")
            continue
        columns = {column["name"] for column in found.get_columns(name)}
        indexes = {index["name"] for index in found.get_indexes(name)}
        missing += [f"the column {name}.{key}" for key in table.c.keys() if key not in columns]  # noqa: SIM118
        missing += [f"the index {one.name}" for one in table.indexes if one.name not in indexes]
    return sorted(missing)


def _unchecked(storage: str) -> closing[Database]:
    return closing(connect(storage, check=False))


def _make_file(path: Path) -> None:
    check_file(path)
    deadline_s = time.monotonic() + SQLITE_BUSY_TIMEOUT_S
    while True:
        try:
            return _use_wal(path)
        except sqlite3.Error as error:
            # If another process writes or sets the journal mode at this moment, SQLite does not
            # wait for its busy timeout, but refuses at once.
            code = getattr(error, "sqlite_errorcode", None) or 0
            is_busy = code & 0xFF == sqlite3.SQLITE_BUSY  # includes SQLITE_BUSY_RECOVERY
            if not is_busy or time.monotonic() > deadline_s:
                raise faults.translate(error, url=str(path)) or StorageError(str(error)) from error
        time.sleep(random.uniform(*WAL_RETRY_S))  # noqa: S311  jitter, no secret


def _use_wal(path: Path) -> None:
    with closing(
        sqlite3.connect(path, timeout=SQLITE_BUSY_TIMEOUT_S, isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


@contextmanager
def _migrating(database: Database) -> Iterator[sa.Connection]:
    with _process_lock:
        try:
            database.longest_silence = for_ever
            locked = _locked_postgresql if database.postgresql else _locked_sqlite
            with locked(database.engine) as connection:
                yield connection
        except CommandError as error:  # a migration refused the rows, for example
            raise StorageError(str(error)) from error
        except Exception as error:  # an error of Alembic or of the driver
            translated = faults.translate(error, url=database.url)
            if translated is None:
                raise
            if isinstance(translated, StorageDenied):
                translated = StorageDenied(f"{translated} {Role.OWNER.advice}")
            raise translated from error


@contextmanager
def _locked_postgresql(engine: sa.Engine) -> Iterator[sa.Connection]:
    # Locks and settings end with the transaction, so they do not stay on a pooler's connection.
    with engine.connect() as connection, connection.begin():
        # After the wait for the lock, the migration must see what another migration has changed.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        _lock_database(connection)
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        _stay_in_schema(connection)
        if _has_tables(connection):
            wide_view_sql.lock(_TextRunner(connection))
            _act_as_owner(connection)
            _lock_tables(connection)
        yield connection


def _has_tables(connection: sa.Connection) -> bool:
    found = connection.exec_driver_sql(f"SELECT to_regclass('{revisions.TABLE}')")
    return found.scalar() is not None


def _stay_in_schema(connection: sa.Connection) -> None:
    """
    Make all tables in one schema: that of the tables that exist, or else the current schema.

    The default search path begins with a schema that has the name of the user. If such a schema was
    made after the tables, or when this session acts as the tables' owner, new tables would be made
    in another schema than the tables that exist.
    """
    of_tables = (
        "SELECT schema.nspname FROM pg_class AS found JOIN pg_namespace AS schema "  # noqa: S608
        f"ON found.relnamespace = schema.oid WHERE found.oid = to_regclass('{revisions.TABLE}')"
    )
    connection.exec_driver_sql(
        f"SELECT set_config('search_path', quote_ident(coalesce(({of_tables}), current_schema())), "
        "true) WHERE current_schema() IS NOT NULL"
    )


def _act_as_owner(connection: sa.Connection) -> None:
    """Act as the tables' owner until the transaction ends, so that new tables get this owner."""
    owner = wide_view_sql.owner_to_act_for(_TextRunner(connection), revisions.TABLE)
    if owner is not None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {owner}")


def _lock_tables(connection: sa.Connection) -> None:
    """
    Lock all tables that exist, before the first of them is changed.

    A migration locks several tables one after the other, and so do the transactions of workers. If
    their orders differed, the migration and a transaction could wait for each other until the
    server ends one of them. So a single statement locks all tables before the first change; if the
    statement takes too long, it fails, its locks are released, and workers go on until the next
    try. Each try may take twice as long as the try before, up to 60 s.
    """
    tables = " UNION ALL ".join(
        f"SELECT to_regclass('{name}')::text" for name in study.metadata.tables
    )
    found = [row[0] for row in connection.exec_driver_sql(tables) if row[0] is not None]
    if not found:
        return
    limit_s, longest_s = TABLE_LOCK_S
    while not _could_lock(connection, found, limit_s=limit_s):
        limit_s = min(2 * limit_s, longest_s)
        time.sleep(random.uniform(*TABLE_LOCK_RETRY_S))  # noqa: S311  jitter, no secret
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def _could_lock(connection: sa.Connection, tables: Sequence[str], *, limit_s: float) -> bool:
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(limit_s * 1000)}")
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(tables)}")
    except sa.exc.OperationalError as error:
        if not isinstance(faults.translate(error, url=""), StorageBusy):
            raise
        return False
    return True


def _lock_database(connection: sa.Connection) -> None:
    """
    Take the advisory lock under which the tables are made or changed.

    Every role that may connect can take this lock and keep it. So the wait is bounded; if the lock
    is not free in time, the migration goes on without it. In this case locks on tables still
    protect the existing tables; but if two processes make missing tables at the same time, one of
    the processes fails and changes nothing.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(ADVISORY_LOCK_TIMEOUT_S * 1000)}")
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({revisions.ADVISORY_LOCK})")
    except sa.exc.OperationalError as error:
        if not isinstance(faults.translate(error, url=""), faults.LockTimeout):
            raise


def begin_immediate(connection: sa.Connection) -> None:
    """Begin SQLAlchemy's transaction with BEGIN IMMEDIATE, as `Database.begin` does on SQLite."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _locked_sqlite(engine: sa.Engine) -> Iterator[sa.Connection]:
    sa.event.listen(engine, "begin", begin_immediate)
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout={int(SQLITE_BUSY_TIMEOUT_S * 1000)}")
        # To rebuild a table, Alembic drops the table while rows of other tables refer to it.
        driver.execute("PRAGMA foreign_keys=OFF")
        with connection.begin():
            yield connection
            broken = driver.execute("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise StorageError(_dangling(broken))


def _dangling(broken: Sequence[Sequence[Any]]) -> str:
    tables = ", ".join(sorted({str(row[0]) for row in broken}))
    return (
        f"The migration would leave {counted(len(broken), 'row')} of {tables} that refer to "
        "missing rows; nothing was changed. Perhaps another program, such as the sqlite3 shell, "
        "has deleted rows to which others refer. `PRAGMA foreign_key_check` in that shell lists "
        "the rows that refer to missing rows: delete them, then migrate again. If it lists none, "
        "the migration is wrong: please report it."
    )


class _TextRunner:
    def __init__(self, connection: sa.Connection) -> None:
        self.postgresql = connection.dialect.name == "postgresql"
        # SQLAlchemy's own connection would read "%" in the SQL as a bind.
        self._connection = connection.connection

    def fetch_text(self, sql: str) -> Sequence[Sequence[Any]]:
        cursor = self._connection.cursor()
        cursor.execute(sql)
        return cursor.fetchall()

    def run_text(self, sql: str) -> None:
        self._connection.cursor().execute(sql)


@contextmanager
def _without_wide_views(connection: sa.Connection) -> Iterator[None]:
    """
    Drop the wide views, run a block, and make the views again.

    PostgreSQL cannot alter a column that a view uses.
    """
    runner = _TextRunner(connection)
    wide = wide_view_sql.found(runner)
    wide_view_sql.drop(runner, wide)
    yield
    for view in wide:
        wide_view_sql.make(runner, view)


def _config(connection: sa.Connection) -> Config:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            config = Config()
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            config.attributes["connection"] = connection
            return config
    raise StorageError("This installation of studydb lacks its migrations; install it again.")
