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
    Connect to a database whose schema is the one that this studydb needs.

    Args:
        storage: The URL.
        connections: How many the pool opens.
        check: False to skip the check of file and schema, for migrations.
        longest_silence: See `Database`; None for the usual bound.

    Raises:
        UsageError: The URL is not one of a PostgreSQL or SQLite database.
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
