"""A transaction: a driver's cursor, the database's clock, and the ways to run statements."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from studydb.db.chain import MAIN, Chain
from studydb.db.connections import Cursor, new_cursor
from studydb.db.dialect import FEATURES, NOW, now
from studydb.db.statement import BulkInsert, Compiled, Prepared, Row, Rows, compile_for
from studydb.db.types import to_text

Observer = Callable[[str], None]

_READ_NOW = Prepared(sa.select(now().label("now")))


def no_pipeline() -> None:
    """Do nothing; without a pipeline each statement has already waited for its answer."""


class Txn:
    """
    Runs statements on the driver's cursor. Store functions take a `Txn`; operations commit it.

    Attributes:
        features: What the database can do. Packages other than db/ read this, not `postgresql`.
        postgresql: Whether this is PostgreSQL, not SQLite. Only code in db/ reads this attribute.
        abandoned: Whether the transaction is rolled back at the end of the block.
        waits_for_disk: If False on PostgreSQL, the block turns off the wait for the disk just
            before its COMMIT. The method `chain` turns the wait off in the chain's SQL instead, and
            then sets this attribute to True.
    """

    def __init__(
        self,
        cursor: Cursor,
        dialect: Dialect,
        *,
        clock: Callable[[], datetime] | None,
        observer: Observer | None,
        prepare: bool | None,
        durable: bool = True,
        single: bool = False,
        sync: Callable[[], None] = no_pipeline,
    ) -> None:
        """
        Prepare to run statements in a transaction that the caller begins and ends.

        Args:
            cursor: A cursor of the connection; no other thread uses it during the transaction.
            prepare: The argument `prepare` of psycopg's `execute`.
            durable: Whether the commit waits for the disk.
            single: Whether the server commits each statement; then only one statement may run.
            sync: Waits for the answers to all that was sent through a pipeline. Until then the
                server does not count the client as idle, so the idle timeout does not start.
        """
        self._cursor, self._dialect = cursor, dialect
        self._observer, self._prepare, self._sync = observer, prepare, sync
        self._clock = clock
        self._single, self._ran = single, False
        self.waits_for_disk = durable
        self.features = FEATURES[dialect.name]
        self.postgresql = dialect.name == "postgresql"
        self.abandoned = False
        self._now: datetime | None = self._injected_now()

    def abandon(self) -> None:
        """Roll back at the end of the block instead of committing."""
        self.abandoned = True

    def _injected_now(self) -> datetime | None:
        if self._clock is not None:
            return self._clock()
        return None if self.postgresql else datetime.now(UTC)

    @property
    def now(self) -> datetime:
        """
        The time by the server's clock (on SQLite, this host's clock) or by an injected clock.

        The clock is read only once. A statement gets the time by `db.dialect.now()`, without a read
        of this property.
        """
        if self._now is None:
            self._now = self.all(_READ_NOW)[0].now
        return self._now

    def all(self, statement: Prepared | sa.Executable, **params: Any) -> list[Row]:
        compiled = self._compiled(statement)
        cursor = self._execute(compiled, params)
        self._sync()
        return [compiled.read(values) for values in cursor.fetchall()]

    def first(self, statement: Prepared | sa.Executable, **params: Any) -> Row | None:
        rows = self.all(statement, **params)
        return rows[0] if rows else None

    def send(self, statement: Prepared | sa.Executable, **params: Any) -> Callable[[], list[Row]]:
        """
        Send a query whose rows are read later; in a pipeline it costs no round trip.

        Returns:
            A function that returns the rows. Call it once, before the transaction ends.
        """
        if not self.postgresql:
            rows = self.all(statement, **params)
            return lambda: rows
        compiled = self._compiled(statement)
        cursor = self._execute(compiled, params, new_cursor(self._cursor.connection))

        def read() -> list[Row]:
            if cursor.description is None:  # no earlier wait has read the answer
                self._sync()
            return [compiled.read(values) for values in cursor.fetchall()]

        return read

    def run(self, statement: Prepared | sa.Executable, **params: Any) -> None:
        """Run a statement without reading its result; in a pipeline it costs no round trip."""
        self._execute(self._compiled(statement), params)

    def count(self, statement: Prepared | sa.Executable, **params: Any) -> int:
        """Run a statement that returns each row it changed, and count the rows."""
        return len(self.all(statement, **params))

    def insert_many(self, statement: BulkInsert, rows: Rows, **common: Any) -> None:
        """Insert rows with values in the order of `statement.columns`; all rows share `common`."""
        if not rows:
            return
        one_row = self.postgresql and len(rows) == 1
        compiled = statement.compiled(self._dialect, one_row=one_row)
        if self.postgresql:
            self._execute(compiled, {**common, **statement.binds(self._dialect, rows)})
            return
        self._observe(compiled.sql)
        before, stamp = [common[name] for name in statement.common], to_text(self.now)
        encoded = zip(*statement.encoded(self._dialect, rows), strict=True)
        self._cursor.executemany(compiled.sql, [[*before, *row, stamp] for row in encoded])

    def chain(self, chain: Chain, rows: Rows = (), **params: Any) -> Row | None:
        """
        Run a chain and return the row of its main statement; None if there is no row.

        Args:
            rows: The rows that the chain's `BulkInsert` inserts.
        """
        if not self.postgresql:
            return self._run_steps(chain, rows, params)
        whole = chain.whole(self._dialect, durable=self.waits_for_disk, one_row=len(rows) == 1)
        self.waits_for_disk = True
        cursor = self._cursor.connection.cursor_of(whole.numbered[0])
        found = self._execute(whole, params | self._bulk_binds(chain, rows), cursor)
        self._sync()
        values = found.fetchone()
        return None if values is None else whole.read(values)

    def run_chain(self, chain: Chain, rows: Rows = (), **params: Any) -> None:
        """
        Run a chain in a block of several statements without reading its row.

        In a pipeline the chain costs no round trip. The caller must have locked the row that the
        main statement finds. Without this row the chain would do nothing, and raise no error.
        """
        if not self.postgresql:
            self._run_steps(chain, rows, params)
            return
        whole = chain.whole(self._dialect, durable=True, one_row=len(rows) == 1)
        self._execute(whole, params | self._bulk_binds(chain, rows))

    def _bulk_binds(self, chain: Chain, rows: Rows) -> dict[str, Any]:
        binds: dict[str, Any] = {}
        for link in chain.then.values():
            if isinstance(link, BulkInsert):
                binds |= link.binds(self._dialect, rows)
        return binds

    def _run_steps(self, chain: Chain, rows: Rows, params: dict[str, Any]) -> Row | None:
        steps = chain.steps(self._dialect)
        row = None
        for name in (*chain.before, MAIN):
            values = self._execute(steps[name], dict(params)).fetchone()
            if values is None:
                return None
            row = steps[name].read(values)
            params |= {f"{name}_{key}": value for key, value in row._asdict().items()}
        for name, link in chain.then.items():
            if isinstance(link, BulkInsert):
                self.insert_many(link, rows, **params)
            else:
                self._execute(steps[name], dict(params))
        return row

    def raw(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run SQL text; return its column names and its rows, not decoded."""
        cursor = self._cursor
        self._observe(sql)
        cursor.execute(sql)
        self._sync()
        names = [column[0] for column in cursor.description or ()]
        return names, cursor.fetchall() if names else []

    def single(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """
        Run a user's SQL if it is a single statement; return column names and rows, not decoded.

        PostgreSQL takes several statements only by the simple protocol, which a pipeline does not
        use. sqlite3 takes only one statement, and we refuse ATTACH, which opens another file, and
        DETACH.
        """
        if not self.postgresql:
            connection = self._cursor.connection
            connection.set_authorizer(_attach_nothing)
            try:
                return self.raw(sql)
            finally:
                connection.set_authorizer(None)
        with self._cursor.connection.pipeline() as pipeline:
            self._observe(sql)
            self._cursor.execute(sql, prepare=False)
            pipeline.sync()
            names = [column[0] for column in self._cursor.description or ()]
            return names, self._cursor.fetchall() if names else []

    def fetch_text(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL text and return its rows, not decoded."""
        return self.raw(sql)[1]

    def lock_table(self, table: sa.Table) -> None:
        """
        Wait for the transactions that have locked or written rows of a table; block later ones.

        SQLite has one writer at a time, and needs no lock.
        """
        if self.postgresql:
            self.run_text(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE")

    def run_text(self, sql: str) -> None:
        """Run SQL text that returns no rows, such as DDL."""
        self._observe(sql)
        self._cursor.execute(sql)

    def _compiled(self, statement: Prepared | sa.Executable) -> Compiled:
        if isinstance(statement, Prepared):
            return statement.compiled(self._dialect)
        return compile_for(statement, self._dialect)

    def _execute(
        self, compiled: Compiled, params: dict[str, Any], cursor: Cursor | None = None
    ) -> Cursor:
        if self._single:
            assert not self._ran, "a second statement would be a second transaction"
            self._ran = True
        if self._now is not None and NOW in compiled.defaults:
            params[NOW] = self._now
        self._observe(compiled.sql)
        if self.postgresql:
            sql, _ = compiled.numbered
            given = compiled.bind_in_order(params)
            return (cursor or self._cursor).execute(sql, given, prepare=self._prepare)
        return self._cursor.execute(compiled.sql, compiled.bind(params))

    def _observe(self, sql: str) -> None:
        if self._observer is not None:
            self._observer(sql)


def _attach_nothing(action: int, *_: Any) -> int:
    refused = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK
