"""Tell a login that may only read from a server that takes no writes for a while."""

from collections.abc import Callable
from typing import TypeVar

from studydb.db import Database
from studydb.domain.errors import StorageBusy, StorageReadOnly
from studydb.store import session

Answered = TypeVar("Answered")


def write(database: Database, call: Callable[[], Answered]) -> Answered:
    """
    Make a call that writes.

    PostgreSQL gives the same error to a client of a standby, which passes when the client is led
    to the new primary, and to a role whose transactions are read-only, which does not.

    Raises:
        StorageReadOnly: The login may only read.
    """
    try:
        return call()
    except StorageBusy:
        _refuse_reader(database)
        raise


def _refuse_reader(database: Database) -> None:
    if not database.postgresql:
        return
    with database.begin(write=False) as txn:
        reader = session.reader(txn)
    if reader is not None:
        raise StorageReadOnly(
            f"{database.url} lets {reader!r} only read: its default_transaction_read_only is on. "
            "Log in as a role that may write."
        )
