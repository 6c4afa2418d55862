"""Connecting to the database that a storage URL names."""

import sqlite3
from collections.abc import Callable

from studydb.db.compatibility import check_schema
from studydb.db.database import Database
from studydb.db.urls import read_url
from studydb.domain.errors import StorageError, UsageError

SQLITE_OLDEST = (3, 37, 0)


def connect(
    storage: str,
    *,
    connections: int = 2,
    read_only: bool = False,
    check: bool = True,
    longest_silence: Callable[[], float] | None = None,
) -> Database:
    """
    Connect to a database; check the file and the schema.

    Args:
        storage: The database's URL.
        connections: How many connections the pool opens at most.
        read_only: Whether the connections may only read.
        check: Whether to check the file and the schema; False for commands that read or change the
            schema's revision. Without the check, no connection is opened yet.
        longest_silence: The value of `Database.longest_silence`; None for its default.

    Raises:
        UsageError: The URL does not name a PostgreSQL or SQLite database, or its `pooler` is not
            `transaction`.
        StorageError: The database is missing or cannot be used, its schema is too old or too new,
            or the SQLite library is too old.
    """
    url = read_url(storage)
    if url.get_backend_name() == "sqlite" and sqlite3.sqlite_version_info < SQLITE_OLDEST:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old; studydb needs 3.37 or newer."
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
