"""Open databases, retry calls of a person while the database is away, and name the user."""

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from studydb.db import Database, connect
from studydb.domain.errors import InvalidSpec
from studydb.domain.roles import Role
from studydb.lease.retries import retry_until_answered
from studydb.operations.writing import write
from studydb.settings import storage_url

CONTROL_PATIENCE_S = 10.0
"""While the database does not answer, a person's call is retried for this many seconds."""

Answered = TypeVar("Answered")


def open_database(storage: str | os.PathLike[str] | None, *, make: bool) -> Database:
    """
    Connect to the database at `storage`, else at $STUDYDB_STORAGE, else to the default database.

    Args:
        make: Whether to make an SQLite database and its tables if they are missing.
    """
    if storage is not None and not isinstance(storage, str):
        raise InvalidSpec(
            f"storage is {storage!r}; give a URL, such as 'sqlite:///studydb.db' or "
            "'postgresql://user@host/database'."
        )
    url = storage_url(storage)
    if make:
        from studydb.db import migrate  # noqa: PLC0415  imports Alembic

        migrate.make_sqlite(url)
    return connect(url)


@contextmanager
def closed_on_error(database: Database) -> Iterator[None]:
    """Close the database if the block raises; no handle exists yet that could close it."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def read_patiently(call: Callable[[], Answered]) -> Answered:
    """Make a call that reads, or that calls `write` itself; retry it for `CONTROL_PATIENCE_S`."""
    return retry_until_answered(call, patience_s=CONTROL_PATIENCE_S)


def write_patiently(database: Database, call: Callable[[], Answered]) -> Answered:
    """Make a call that writes; retry it for `CONTROL_PATIENCE_S`."""
    return retry_until_answered(
        lambda: write(database, call, role=Role.OWNER), patience_s=CONTROL_PATIENCE_S
    )


def whoami() -> str:
    """Return user@host, the actor of a person's requests."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
