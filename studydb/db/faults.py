"""
Translate a driver's errors into ours, with messages for the user.

Packages other than db/ see only our errors, and retry after a `StorageTransient`.
"""

import sqlite3
from typing import Any

import psycopg
import sqlalchemy.exc

from studydb.db.silence import SilentServerError
from studydb.domain.errors import (
    HostError,
    InvalidData,
    StorageBusy,
    StorageDenied,
    StorageError,
    StorageMissing,
    StorageReadOnly,
    StorageUnreachable,
    UsageError,
)

_GONE = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}
_READ_ONLY = "25006"
_LOCK_TIMEOUT = "55P03"
_BUSY = {"40001", "40P01", _LOCK_TIMEOUT, "53300", _READ_ONLY, "57014"}
_NO_SUCH_TABLE = "42P01"
_NO_SUCH_DATABASE = "3D000"
_DENIED = "42501"
_NO_LOGIN = {"28P01", "28000"}
_UNIQUE = "23505"
_UNFIT = {"22001", "22003", "22008", "22021", "22P02", "22P03", "22P05", "54000"}
"""Codes for values that PostgreSQL refuses. If the driver refuses a value, there is no code."""

_LOGIN = ("authentication failed", "no password supplied")


class Duplicate(Exception):
    """A UNIQUE constraint refused a row; an earlier send of the request may have stored the row."""


class DuplicateParams(Duplicate):
    """A trial whose params are to be unique has the params of another such trial."""


_OF_PARAMS = (
    "trial_unique_params",
    "UNIQUE constraint failed: trial.study_id, trial.params_hash",
)
"""How PostgreSQL and SQLite name the index that refuses a second trial with the same params."""


class NoTables(StorageMissing):
    """The database has no studydb tables."""


def no_tables(url: str) -> NoTables:
    """Make the error of a database without studydb tables."""
    return NoTables(f"{url} has no studydb tables. Run `studydb db upgrade` on it.")


class LockTimeout(StorageBusy):
    """A lock was not free within `lock_timeout`."""


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's error inside an error of SQLAlchemy; return any other error as it is."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def translate(error: BaseException, *, url: str) -> Exception | None:
    """
    Translate a driver's error; None for any other error, and for a bug of studydb.

    Args:
        url: The database's URL with its password masked.
    """
    error = driver_error(error)
    if isinstance(error, SilentServerError):
        return StorageUnreachable(
            f"{url} accepted a request and gives {error}. The server may be overloaded or stopped, "
            "or wait for a synchronous standby that is missing: see pg_stat_activity and "
            "synchronous_standby_names there."
        )
    if _is_unfit(error):
        return InvalidData(
            f"{url} cannot store a value: {_first_line(error)[:400]}. Change it, or leave it out."
        )
    if isinstance(error, psycopg.Error):
        return _translate_postgresql(error, url)
    if isinstance(error, sqlite3.Error):
        return _translate_sqlite(error, url)
    return None


def _translate_postgresql(  # noqa: C901, PLR0911  one line per error
    error: psycopg.Error, url: str
) -> Exception | None:
    code = error.sqlstate
    if code == _UNIQUE:
        return _duplicate(error.diag.constraint_name or "")
    if code in _BUSY:
        kind = LockTimeout if code == _LOCK_TIMEOUT else StorageBusy
        return kind(f"{url} is busy: {_first_line(error)}.")
    if code in _GONE or (code or "").startswith("08"):
        return StorageUnreachable(f"{url} closed the connection: {_first_line(error)}.")
    if code == _NO_SUCH_DATABASE or (code is None and "does not exist" in str(error)):
        return _cannot_connect(error, url)
    if code == _NO_SUCH_TABLE:
        return no_tables(url)
    if code == _DENIED:
        return StorageDenied(f"{url} refuses: {_first_line(error)}.")
    if code in _NO_LOGIN:
        return StorageError(
            f"{url} refuses: {_first_line(error)}. Check user, password and rights."
        )
    if code is None and "connection option" in str(error):
        return UsageError(f"{url} cannot be used: {_first_line(error)}.")
    if code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return _cannot_connect(error, url)
    if isinstance(error, psycopg.OperationalError):  # such as a full disk, which is temporary
        return StorageBusy(f"{url} fails: {_first_line(error)}. See the server's log.")
    return None


def _duplicate(what: str) -> Duplicate:
    return DuplicateParams(what) if what in _OF_PARAMS else Duplicate(what)


def _is_unfit(error: BaseException) -> bool:
    if isinstance(error, psycopg.Error):
        code = error.sqlstate
        return code in _UNFIT or (code is None and isinstance(error, psycopg.DataError))
    return isinstance(error, sqlite3.DataError | OverflowError | UnicodeEncodeError)


def _cannot_connect(error: psycopg.Error, url: str) -> Exception:
    text = _first_line(error)
    if "database" in text and "does not exist" in text:
        return StorageMissing(f"There is no such database: {url}. Create it with `createdb`.")
    if any(words in text for words in _LOGIN) or ("role" in text and "does not exist" in text):
        return StorageError(f"{url} refuses the login. Check user and password.")
    return StorageUnreachable(
        f"No connection to {url}: {text}. Is the server running, and is the URL right?"
    )


def _translate_sqlite(  # noqa: PLR0911  one line per error
    error: sqlite3.Error, url: str
) -> Exception | None:
    code = getattr(error, "sqlite_errorcode", None) or 0
    text = str(error)
    if isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in text:
        return _duplicate(text)
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageBusy(f"{url} is busy: another process is writing.")
        case sqlite3.SQLITE_READONLY:
            return StorageReadOnly(f"{url} cannot be written: check the rights of file and folder.")
        case sqlite3.SQLITE_CANTOPEN:
            return StorageMissing(f"{url} cannot be opened. Check the path and its rights.")
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return StorageBusy(f"{url} cannot be written: {text}. Is the disk full?")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StorageError(f"{url} is not an SQLite database, or it is damaged: {text}.")
    if "no such table" in text:
        return no_tables(url)
    return None


def _first_line(error: Any) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def is_disconnect(error: BaseException) -> bool:
    """Tell whether the connection cannot be used any more."""
    error = driver_error(error)
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if isinstance(error, psycopg.DataError):  # the server or the driver refused a value
        return False
    if code == _READ_ONLY:
        return True  # the server has become a standby; a new connection finds the primary
    return code is None or code in _GONE or code.startswith("08")


def is_of_values(error: BaseException) -> bool:
    """Tell whether a trial's values caused an error; if so, other trials can go on."""
    error = driver_error(error)
    if isinstance(error, psycopg.Error | sqlite3.Error):
        refused = psycopg.DataError | psycopg.IntegrityError | sqlite3.IntegrityError
        return _is_unfit(error) or isinstance(error, refused)
    return not isinstance(error, StorageError | HostError | OSError | MemoryError)
