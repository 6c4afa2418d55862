"""Translate and classify psycopg's errors; see `db/faults`."""

import psycopg

from studydb.db.faults import LockTimeout, duplicate, first_line, no_tables
from studydb.db.silence import SilentServerError
from studydb.domain.errors import (
    StorageBusy,
    StorageDenied,
    StorageError,
    StorageMissing,
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
_STILL_USED = "2BP01"
_CURES = {
    **dict.fromkeys(("28P01", "28000"), "Check user, password and rights."),
    "3F000": "No schema of the login's search_path exists, or the login may not use it: correct "
    "the search_path, or grant USAGE on the schema.",
    _STILL_USED: "Drop what depends on it, type the command again, and make again what you have "
    "dropped.",
}
"""What cures errors that last until a person changes something."""

_UNIQUE = "23505"
_NO_SUCH_KEY = "23503"
_UNFIT = {"22001", "22003", "22008", "22021", "22P02", "22P03", "22P05", "54000"}
"""Codes for values that PostgreSQL refuses. If the driver refuses a value, there is no code."""

_LOGIN = ("authentication failed", "no password supplied")


def translate(  # noqa: C901, PLR0911  one line per error
    error: psycopg.Error, url: str
) -> Exception | None:
    """
    Translate an error of psycopg.

    Returns:
        None for an error that is raised as it is, such as that of a CHECK or a wrong statement.
    """
    if isinstance(error, SilentServerError):
        return StorageUnreachable(
            f"{url} accepted a statement, but gives {error}. The server may be overloaded or "
            "stopped, or wait for a synchronous standby that is missing: see pg_stat_activity and "
            "synchronous_standby_names there."
        )
    code = error.sqlstate
    if code == _UNIQUE:
        return duplicate(error.diag.constraint_name or "")
    if code in _BUSY:
        kind = LockTimeout if code == _LOCK_TIMEOUT else StorageBusy
        return kind(f"{url} is busy: {first_line(error)}.")
    if code in _GONE or (code or "").startswith("08"):
        return StorageUnreachable(f"{url} closed the connection: {first_line(error)}.")
    if code == _NO_SUCH_DATABASE or (code is None and "does not exist" in str(error)):
        return _cannot_connect(error, url)
    if code == _NO_SUCH_TABLE:
        return no_tables(url)
    if code == _DENIED:
        return StorageDenied(f"{url} refuses: {first_line(error)}. The login lacks a right.")
    if code in _CURES:
        detail = f" ({first_line(error.diag.message_detail)})" if code == _STILL_USED else ""
        return StorageError(f"{url} refuses: {first_line(error)}{detail}. {_CURES[code]}")
    if code is None and "connection option" in str(error):
        return UsageError(f"{url} cannot be used: {first_line(error)}.")
    if code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return _cannot_connect(error, url)
    if isinstance(error, psycopg.OperationalError):  # such as a full disk: a fault that can pass
        return StorageBusy(f"{url} fails: {first_line(error)}. See the server's log.")
    return None


def _cannot_connect(error: psycopg.Error, url: str) -> Exception:
    text = first_line(error)
    if "database" in text and "does not exist" in text:
        return StorageMissing(f"There is no such database: {url}. Create it with `createdb`.")
    if any(words in text for words in _LOGIN) or ("role" in text and "does not exist" in text):
        return StorageError(f"{url} refuses the login. Check user and password.")
    return StorageUnreachable(
        f"No connection to {url}: {text}. Is the server running, and is the URL right?"
    )


def is_unfit(error: psycopg.Error) -> bool:
    """Tell whether the server or the driver refused a value."""
    code = error.sqlstate
    return code in _UNFIT or (code is None and isinstance(error, psycopg.DataError))


def is_of_values(error: psycopg.Error) -> bool:
    """Tell whether an error counts as caused by a trial's values."""
    return is_unfit(error) or isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def is_of_missing_row(error: psycopg.Error) -> bool:
    """Tell whether a FOREIGN KEY refused a write."""
    return error.sqlstate == _NO_SUCH_KEY


def is_disconnect(error: psycopg.Error) -> bool:
    """Tell whether the connection cannot be used any more."""
    code = error.sqlstate
    if isinstance(error, psycopg.DataError):  # the server or the driver refused a value
        return False
    if code == _READ_ONLY:
        return True  # the server has become a standby; a new connection finds the primary
    return code is None or code in _GONE or code.startswith("08")
