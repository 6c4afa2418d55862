"""A temporary SQLite database for one process; writes never wait for the disk."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from studydb.db.connecting import connect
from studydb.db.database import Database
from studydb.temporary import TemporaryDirectory

_PRAGMAS = (
    "synchronous=OFF",
    "locking_mode=EXCLUSIVE",
    "journal_mode=MEMORY",
    "temp_store=MEMORY",
    "cache_size=-65536",
)
"""
With these settings SQLite does not wait for the disk, takes no lock per transaction, and keeps the
journal, temporary tables and up to 64 MiB of pages in memory. Only one connection may be open.
"""


@contextmanager
def scratch_database() -> Iterator[Database]:
    """
    Yield a database with studydb's tables in a temporary file, which is removed at the end.

    The database has one connection, does not wait for the disk, and can be used by this process
    only. Statements and transactions are the same as on any SQLite database.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "studydb.db"
        path.write_bytes(_empty_file())
        with closing(connect(f"sqlite:///{path}", connections=1)) as database:
            cursor = database.connections.take()
            for pragma in _PRAGMAS:
                cursor.execute(f"PRAGMA {pragma}").fetchone()
            database.connections.give_back(cursor)
            yield database


@cache
def _empty_file() -> bytes:
    """
    Return the bytes of a database without studies.

    The bytes are cached, because the migrations that make them take longer than a simulation.
    """
    from studydb.db import migrate  # noqa: PLC0415  imports Alembic

    with TemporaryDirectory() as folder:
        path = Path(folder) / "studydb.db"
        migrate.make_sqlite(f"sqlite:///{path}")
        return path.read_bytes()
