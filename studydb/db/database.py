"""
A database: its options, and how its connections are opened.

SQLite has WAL, synchronous=FULL, and BEGIN IMMEDIATE for every writer. BEGIN IMMEDIATE makes claims
safe there: SQLite has no SKIP LOCKED, and the isolation levels of its driver gave duplicate claims
or "database is locked".
"""

import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from studydb.artifacts import Locations
from studydb.db import sessions, sqlite_file
from studydb.db.connections import Connections, Cursor, new_cursor
from studydb.db.silence import BoundedConnection
from studydb.db.transaction import Observer
from studydb.db.transaction_block import TransactionBlock
from studydb.db.types import load_json
from studydb.db.urls import check_encoding, features_of, mask
from studydb.domain.errors import StorageMissing


def _longest_silence() -> float:
    return sessions.LONGEST_SILENCE_S


class Database:
    """
    One database, reached through a small pool; safe to share among threads.

    Attributes:
        url: As it may be shown: the password is masked.
        features: What the rooms above db/ ask about it.
        postgresql: For db/ alone; else it is SQLite.
        pooler: Whether a transaction pooler is in between, whose sessions keep no settings.
        engine: SQLAlchemy's, for migrations; it opens connections and keeps none.
        longest_silence: Seconds for which PostgreSQL may leave a request without an answer; called
            again and again during a wait.
        clock: A test's clock; None for the database's.
        observer: Called with every statement, and with BEGIN, COMMIT and ROLLBACK.
        no_queue_until_s: Until this `monotonic()`, asks skip their queue; see `operations/ask`.
    """

    def __init__(self, url: URL, *, connections: int = 2, read_only: bool = False) -> None:
        self.secret_url, self.url = url, mask(url)
        self.features = features_of(url)
        self.postgresql = url.get_backend_name() == "postgresql"
        self.pooler = self.postgresql and url.query.get("pooler") == "transaction"
        self.read_only = read_only
        self.engine = self._make_engine()
        self.connections = Connections(self._open_cursor, limit=connections, url=self.url)
        self._file: tuple[int, int] | None = None
        self.longest_silence: Callable[[], float] = _longest_silence
        self.clock: Callable[[], datetime] | None = None
        self.observer: Observer | None = None
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
        except BaseException:
            connection.close()
            raise
        connection.autocommit = True  # BEGIN and COMMIT are ours, so they travel in the pipeline
        setting = sessions.set_for_session(connection.info.server_version)
        if setting is not None and not self.pooler:
            connection.execute(setting)
        return new_cursor(connection)

    def _connect_postgresql(
        self, _dialect: Any, _record: Any, arguments: Any, options: Any
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.longest_silence = self.longest_silence
        return connection

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
        Make sure that the open SQLite file is still the one at its path.

        Raises:
            StorageMissing: It was moved, deleted or replaced; what is written to it now is lost.
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
        """Where the logs and checkpoints of its studies are."""
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
        Open a transaction: committed at the end of the block, rolled back when it raises.

        Args:
            write: False for a reader, which on SQLite takes no lock.
            durable: False for a COMMIT of PostgreSQL that does not wait for the disk. A crash of
                the server may take the change back, until a later durable COMMIT.
            single: The block runs one statement or chain, which PostgreSQL takes without BEGIN and
                COMMIT.
            snapshot: All reads of the block see the database as the first one does. On SQLite they
                always do.

        Raises:
            StorageTransient: The fault will pass; the COMMIT may or may not have happened.
            StorageError: The database needs attention.
        """
        return TransactionBlock(
            self, write=write, durable=durable, single=single, snapshot=snapshot
        )

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.connections.close()
