"""Cuts the connection of a call at one of its COMMITs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from studydb.db import Database
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import StorageUnreachable


@contextmanager
def cut(database: Database, when: str, *, nth: int = 1) -> Iterator[None]:
    """
    Cut the connection "before" the n-th COMMIT, or "after" the COMMIT but before its reply.

    On SQLite, raise StorageUnreachable at this point instead.
    """
    end, commits = TransactionBlock._end, iter(range(1, nth + 1))

    def cut_end(block: TransactionBlock, *, commit: bool) -> None:
        if commit and next(commits) < nth:
            end(block, commit=True)
            return
        if commit and when == "after":
            end(block, commit=True)
            block._cursor.execute("SELECT 1").fetchone()  # the server answers after the COMMIT
        if not commit:
            end(block, commit=False)
            return
        if not database.postgresql:
            raise StorageUnreachable("the process is gone")
        _close(block._cursor.connection)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionBlock, "_end", cut_end)
        # With a pooler, operations in a single statement also send a COMMIT, which can be cut.
        patch.setattr(database, "pooler", database.postgresql)
        yield


def _close(connection: psycopg.Connection) -> None:
    """
    Close a connection, and wait until the server has released the connection's locks.

    Until then claims and promotions would skip the locked rows.
    """
    info = connection.info
    options = info.get_parameters() | {"password": info.password}
    with psycopg.connect(**options, autocommit=True) as watching:
        pid = info.backend_pid
        connection.close()
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        while not watching.execute(gone, [pid]).fetchone()[0]:
            time.sleep(0.001)
