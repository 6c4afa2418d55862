"""Translate the errors of Python's sqlite3; see `db/faults`."""

import sqlite3

from studydb.db.faults import duplicate, no_tables
from studydb.domain.errors import StorageBusy, StorageError, StorageMissing, StorageReadOnly


def translate(  # noqa: PLR0911  one line per error
    error: sqlite3.Error, url: str
) -> Exception | None:
    """
    Translate an error of sqlite3.

    Returns:
        None for an error that is raised as it is, such as that of a wrong statement.
    """
    code = getattr(error, "sqlite_errorcode", None) or 0
    text = str(error)
    if isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in text:
        return duplicate(text)
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageBusy(f"{url} is busy: another process is writing.")
        case sqlite3.SQLITE_READONLY:
            return StorageReadOnly(f"{url} cannot be written: check the rights of file and folder.")
        case sqlite3.SQLITE_CANTOPEN:
            return StorageMissing(f"{url} cannot be opened. Check the path and its rights.")
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return StorageBusy(f"{url} cannot be read or written: {text}. Is the disk full?")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StorageError(f"{url} is not an SQLite database, or it is damaged: {text}.")
    if "no such table" in text:
        return no_tables(url)
    return None


def is_unfit(error: sqlite3.Error) -> bool:
    """Tell whether SQLite refused a value."""
    return isinstance(error, sqlite3.DataError)


def is_of_values(error: sqlite3.Error) -> bool:
    """Tell whether an error counts as caused by a trial's values."""
    return isinstance(error, sqlite3.DataError | sqlite3.IntegrityError)


def is_of_missing_row(error: sqlite3.Error) -> bool:
    """Tell whether a FOREIGN KEY refused a write."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY


def is_disconnect(error: sqlite3.Error) -> bool:  # noqa: ARG001  `DriverFaults` demands it
    """Return False: SQLite has no server to which a connection could be lost."""
    return False
