"""Cuts the connection of a call at one of its COMMITs."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from studydb.db import Database
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import StorageUnreachable


@contextmanager
def cut(database: Database, when: str, *, nth: int = 1) -> Iterator[None]:
    """Cut the connection "before" the n-th COMMIT, or "after" the COMMIT but before its reply."""
    end, commits = TransactionBlock._end, iter(range(1, nth + 1))

    def cut_end(block: TransactionBlock, *, commit: bool) -> None:
        if commit and next(commits) < nth:
            end(block, commit=True)
            return
        if commit and when == "after":
            end(block, commit=True)
            block._cursor.execute("SELECT 1").fetchone()  # lets the pipeline send the COMMIT
        if not commit:
            end(block, commit=False)
            return
        if not database.postgresql:
            raise StorageUnreachable("the process is gone")
        block._cursor.connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionBlock, "_end", cut_end)
        patch.setattr(
            database, "pooler", database.postgresql
        )  # so that single statements, too, send a COMMIT
        yield
