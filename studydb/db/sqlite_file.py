"""Open an SQLite file, with or without the right to write to it."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from studydb.domain.errors import StorageBusy, StorageDenied

BUSY_TIMEOUT_S = 5

_NO_WAL = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""SQLite raises these errors if a file in WAL mode has no `-shm` file and none can be made."""


class ArchiveConnection(sqlite3.Connection):
    """
    A connection that reads without locks, and ignores the `-wal` file.

    A writer could change pages during a read. So the connection serves only one transaction, and
    its reads are valid only if the file has not changed during the transaction.

    Attributes:
        stamp: The `_stamp` of the file when it was opened.
    """

    path: Path
    stamp: tuple[int, ...]

    def check_unchanged(self) -> None:
        """
        Check at the end of a transaction that no process wrote meanwhile.

        Raises:
            StorageBusy: The file or its `-wal` has changed.
        """
        if _stamp(self.path) != self.stamp:
            raise StorageBusy(f"sqlite:///{self.path} is busy: another process is writing.")


def open_file(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """
    Open an SQLite file that exists.

    Returns:
        A connection; an `ArchiveConnection` if SQLite would have to write in the file's folder, and
        this user may not write there, or may only read the file of another user. In the second case
        SQLite would make files there that the file's owner could not use.

    Raises:
        StorageDenied: The `-wal` file holds changes, or the `-journal` file holds an unfinished
            transaction. To use either file, SQLite needs the right to write, which this user lacks.
    """
    path = Path(os.path.realpath(path))  # SQLite makes its own files there, not beside a link
    refused: sqlite3.OperationalError | None = None
    if not _would_leave_files(path):
        try:
            return _opened(path, "mode=ro" if read_only else "mode=rw", read_only=read_only)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_WAL or not _may_only_read(path):
                raise
            refused = error
    stamp = _stamp(path)
    if stamp[-1] > 0:
        raise StorageDenied(_cannot_read_wal(path)) from refused
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and journal.stat().st_size > 0:
        raise StorageDenied(
            f"sqlite:///{path} cannot be read: a writer died in a transaction, and only a user who "
            f"may write can undo that transaction from {journal.name}. Have the owner open the "
            "database once, or copy both files to a folder of yours, and give the copy's path."
        ) from refused
    archive = _opened(path, "mode=ro&immutable=1", read_only=True, factory=ArchiveConnection)
    assert isinstance(archive, ArchiveConnection)
    archive.path, archive.stamp = path, stamp
    return archive


def _opened(
    path: Path, how: str, *, read_only: bool, factory: type[sqlite3.Connection] = sqlite3.Connection
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
        # This statement reads the file, so that an error is raised here.
        connection.execute("PRAGMA schema_version")
    except BaseException:
        connection.close()
        raise
    return connection


def _may_only_read(path: Path) -> bool:
    return os.access(path, os.R_OK) and not os.access(path.parent, os.W_OK)


def _would_leave_files(path: Path) -> bool:
    """Whether SQLite would make a `-shm` file that the file's owner could not use."""
    if path.with_name(f"{path.name}-shm").exists() or os.access(path, os.W_OK):
        return False
    return os.access(path, os.R_OK) and path.stat().st_uid != os.geteuid()


def _stamp(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is written; the last number is the `-wal`'s size."""
    found = path.stat()
    wal = 0
    with suppress(FileNotFoundError):
        wal = _wal_of(path).stat().st_size
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, wal


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _cannot_read_wal(path: Path) -> str:
    return (
        f"sqlite:///{path} cannot be read: changes are in {_wal_of(path).name}, and SQLite must "
        f"write in {path.parent} to read this file. Ask for the right to write there, or copy both "
        f"files, {path.name} and {_wal_of(path).name}, to a folder of yours, and give the copy's "
        "path."
    )
