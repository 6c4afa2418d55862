"""Opening an SQLite file, also one that may only be read."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from studydb.domain.errors import StorageBusy, StorageDenied

BUSY_TIMEOUT_S = 5

_NO_WAL = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""
The errors of a reader of a file in WAL mode whose `-shm` is missing and cannot be made; that file
holds the locks of readers and writers.
"""


class ArchiveConnection(sqlite3.Connection):
    """
    A reader without locks, of a file that no process seems to have open for writing.

    It would read pages while a writer changes them, and never see what is in a `-wal`. So it is
    opened for one transaction, whose reads count only if the file is the same afterwards.

    Attributes:
        seen: The file's identity, time and size when it was opened; see `_look`.
    """

    path: Path
    seen: tuple[int, ...]

    def check_unchanged(self) -> None:
        """
        Make sure at the end of a transaction that no process wrote during it.

        Raises:
            StorageBusy: The file has changed, or a writer has begun.
        """
        if _look(self.path) != self.seen:
            raise StorageBusy(f"sqlite:///{self.path} is busy: another process is writing.")


def open_file(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """
    Open an SQLite file that exists.

    Returns:
        A connection; an `ArchiveConnection` if the file cannot be read in another way.

    Raises:
        StorageDenied: The file has changes in a `-wal` that cannot be read without writing.
    """
    try:
        return _opened(path, "mode=ro" if read_only else "mode=rw", read_only=read_only)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _NO_WAL or not _is_closed_to_us(path):
            raise
        refused = error
    seen = _look(path)
    if seen[-1] > 0:
        raise StorageDenied(_cannot_read_wal(path)) from refused
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and journal.stat().st_size > 0:
        raise StorageDenied(
            f"sqlite:///{path} cannot be read: {journal.name} holds what a writer that died left "
            "unfinished, and it cannot be taken back without the right to write. Have its owner "
            "open it once, or copy both files to a folder of yours and name the copy."
        ) from refused
    archive = _opened(path, "mode=ro&immutable=1", read_only=True, factory=ArchiveConnection)
    assert isinstance(archive, ArchiveConnection)
    archive.path, archive.seen = path, seen
    return archive


def _opened(
    path: Path,
    how: str,
    *,
    read_only: bool,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA query_only=ON" if read_only else "PRAGMA synchronous=FULL")
        connection.execute("PRAGMA schema_version")  # reads the file, or says why it cannot
    except BaseException:
        connection.close()
        raise
    return connection


def _is_closed_to_us(path: Path) -> bool:
    return os.access(path, os.R_OK) and not os.access(path.parent, os.W_OK)


def _look(path: Path) -> tuple[int, ...]:
    """Numbers that a write to the file changes; the last is the size of its `-wal`."""
    found = path.stat()
    wal = 0
    with suppress(FileNotFoundError):
        wal = _beside(path).stat().st_size
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, wal


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _cannot_read_wal(path: Path) -> str:
    return (
        f"sqlite:///{path} cannot be read: changes are in {_beside(path).name}, and SQLite reads "
        f"that only with {path.name}-shm, which cannot be made or used without the right to write "
        f"in {path.parent}. Copy both files, {path.name} and {_beside(path).name}, to a folder of "
        "yours and name the copy, or ask for the right to write in that folder."
    )
