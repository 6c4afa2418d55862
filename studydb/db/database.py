"""
A database: its options, and how its connections are opened.

On SQLite we use WAL, synchronous=FULL, and BEGIN IMMEDIATE for every writer. SQLite has no SKIP
LOCKED, so only BEGIN IMMEDIATE makes claims safe. When Python's sqlite3 began the transactions by
itself, two workers claimed the same trial, or got "database is locked".
"""

import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from studydb.artifacts import Locations
from studydb.db import sessions, sqlite_file
from studydb.db.connections import Connections, Cursor, new_cursor
from studydb.db.transaction import Observer
from studydb.db.transaction_block import TransactionBlock
from studydb.db.types import load_json
from studydb.db.urls import check_encoding, features_of, mask
from studydb.domain.errors import StorageMissing

if TYPE_CHECKING:
    from studydb.db.silence import BoundedConnection


class Database:
    """
    One database, reached through a small pool of connections. Threads may share a `Database`.

    Attributes:
        url: The URL with its password masked, safe to print.
        features: What the database can do. Packages other than db/ read this, not `postgresql`.
        postgresql: Whether this is PostgreSQL, not SQLite. Only code in db/ reads this attribute.
        pooler: Whether we connect through a transaction pooler such as PgBouncer. Behind a pooler
            the settings of a session do not last.
        engine: SQLAlchemy's engine. It opens the pool's connections and those of migrations.
        longest_silence: A function that returns for how many seconds to wait for PostgreSQL's
            answer. It is called repeatedly during a wait.
        clock: The clock of a test or a simulation; None to use the database's.
        observer: Called with the SQL of every statement of a `Txn`, and with "BEGIN", "COMMIT" and
            "ROLLBACK".
        on_slow: Called with the operation's name and the seconds of each transaction that took more
            than a second and raised no error; None to report nothing.
        no_queue_until_s: Asks skip the queue of asks until `time.monotonic()` reaches this value;
            `operations/ask` sets the value when an ask's wait in the queue has timed out.
    """

    def __init__(self, url: URL, *, connections: int = 2, read_only: bool = False) -> None:
        self.secret_url, self.url = url, mask(url)
        self.features = features_of(url)
        self.postgresql = url.get_backend_name() == "postgresql"
        self.pooler = self.postgresql and url.query.get("pooler") == "transaction"
        self.read_only = read_only
        self.engine = self._make_engine()
        self.connections = Connections(
            self._open_cursor,
            limit=connections,
            url=self.url,
            waits_at_fork=not self.postgresql,
        )
        self._file: tuple[int, int] | None = None
        self.longest_silence: Callable[[], float] = lambda: sessions.LONGEST_SILENCE_S
        self.clock: Callable[[], datetime] | None = None
        self.observer: Observer | None = None
        self.on_slow: Callable[[str, float], None] | None = None
        self.no_queue_until_s = 0.0

    def _make_engine(self) -> sa.Engine:
        if self.postgresql:
            engine = sa.create_engine(
                self.secret_url.difference_update_query(["pooler"]),
                connect_args=sessions.connect_arguments(
                    self.secret_url, pooler=self.pooler, read_only=self.read_only
                ),
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

    def _open_cursor(self) -> Cursor:
        pooled = self.engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        if not self.postgresql:
            return new_cursor(connection)
        try:
            check_encoding(connection.info.parameter_status("server_encoding"), self.secret_url)
            connection.autocommit = True  # we send BEGIN and COMMIT ourselves, through the pipeline
            if not self.pooler:
                version = connection.info.server_version
                connection.execute(sessions.set_for_session(version, self.secret_url))
        except BaseException:
            connection.close()
            raise
        return new_cursor(connection)

    def _connect_postgresql(
        self, _dialect: Any, _record: Any, arguments: Any, options: Any
    ) -> "BoundedConnection":
        from studydb.db.double_array import DoubleArray, DoubleArrayDumper  # noqa: PLC0415
        from studydb.db.silence import BoundedConnection  # noqa: PLC0415  SQLite needs no psycopg

        connection = BoundedConnection.connect(*arguments, **options)
        connection.adapters.register_dumper(DoubleArray, DoubleArrayDumper)
        connection.longest_silence = self.longest_silence
        return connection

    def _open_sqlite(self) -> sqlite3.Connection:
        connection = sqlite_file.open_file(self.path, read_only=self.read_only)
        self._file = self._file or self._file_at_path()
        return connection

    def _file_at_path(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.secret_url.database or "")  # noqa: PTH116  faster than Path
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def check_file_unmoved(self) -> None:
        """
        Check that the file at the database's path is still the SQLite file that is open.

        Raises:
            StorageMissing: The file was moved, deleted or replaced; writes to the open file would
                be lost.
        """
        found = self._file_at_path()
        if found == self._file:
            return
        fact = "was moved or deleted" if found is None else "was replaced by another file"
        cure = "Put the file back" if found is None else "Put the file back, or keep the new file"
        raise StorageMissing(
            f"{self.url} {fact} while this process used it, so nothing more is written. {cure}; "
            "then start again."
        )

    @property
    def path(self) -> Path:
        """The path of the SQLite file."""
        return Path(self.secret_url.database or "")

    @property
    def locations(self) -> Locations:
        """The places of the logs and checkpoints of the database's studies."""
        return Locations(None if self.postgresql else self.path)

    def begin(
        self,
        *,
        write: bool = True,
        durable: bool = True,
        single: bool = False,
        snapshot: bool = False,
    ) -> TransactionBlock:
        """
        Open a transaction. The end of the block commits; an error or `Txn.abandon` rolls back.

        Args:
            write: Whether the block writes. On SQLite a block that only reads takes no write lock.
            durable: Whether COMMIT waits for the disk on PostgreSQL. Without the wait, a crash of
                the server before the next durable COMMIT can lose the change.
            single: Whether the block runs just one statement or chain. PostgreSQL then needs no
                BEGIN and no COMMIT, except behind a pooler.
            snapshot: Whether all reads of the block see the database as its first read does. On
                SQLite every block is such a snapshot.

        Raises:
            StorageTransient: A fault that will pass. The COMMIT may have happened or not.
            StorageError: A fault that a person must mend.
            Duplicate: A UNIQUE constraint refused a row.
            InvalidData: The database cannot store a value.
        """
        return TransactionBlock(
            self, write=write, durable=durable, single=single, snapshot=snapshot
        )

    def close(self) -> None:
        """Close all connections; one that is in use is closed at the end of its transaction."""
        self.connections.close()
