"""
Translate a driver's errors into ours, with messages for the user.

A transaction block raises our errors; other packages retry after a `StorageTransient`. An error
that is not translated is raised as it is. Other packages ask `is_of_values` and `is_of_missing_row`
what has caused an error.
"""

import sqlite3
import sys
from typing import Any, Protocol

import sqlalchemy.exc

from studydb.domain.errors import (
    HostError,
    InvalidData,
    StorageBusy,
    StorageError,
    StorageMissing,
)


class Duplicate(Exception):
    """A UNIQUE constraint refused a row; an earlier send of the request may have stored the row."""


class DuplicateParams(Duplicate):
    """A new trial has the params of an earlier trial, although both must have unique params."""


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


def duplicate(what: str) -> Duplicate:
    """Make the error of a UNIQUE constraint, from the words by which the driver names it."""
    return DuplicateParams(what) if what in _OF_PARAMS else Duplicate(what)


def first_line(error: object) -> str:
    """Return the first line of an error's message (else the class's name), without a full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's error inside an error of SQLAlchemy; return any other error as it is."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


class DriverFaults(Protocol):
    """The functions of `postgresql_faults` and `sqlite_faults`, our modules for drivers' errors."""

    def translate(self, error: Any, url: str) -> Exception | None: ...

    def is_unfit(self, error: Any) -> bool: ...

    def is_of_values(self, error: Any) -> bool: ...

    def is_of_missing_row(self, error: Any) -> bool: ...

    def is_disconnect(self, error: Any) -> bool: ...


def _driver_of(error: BaseException) -> DriverFaults | None:
    """
    Return the module for the errors of the driver that raised `error`; None for any other error.

    The import of psycopg takes a tenth of a command's start-up time. So the module for PostgreSQL,
    which imports psycopg, is imported only if psycopg has been imported already.
    """
    if isinstance(error, sqlite3.Error):
        from studydb.db import sqlite_faults  # noqa: PLC0415  it imports this module

        return sqlite_faults
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        from studydb.db import postgresql_faults  # noqa: PLC0415  see the docstring

        return postgresql_faults
    return None


def translate(error: BaseException, *, url: str) -> Exception | None:
    """
    Translate the error of a driver, or of a value that Python could not encode for the driver.

    Args:
        url: The database's URL with its password masked.

    Returns:
        The error to raise instead; None for any other error, and for a driver's error that is left
        as it is, such as that of a wrong statement.
    """
    error = driver_error(error)
    if _is_unfit(error):
        return InvalidData(
            f"{url} cannot store a value: {first_line(error)[:400]}. Change or omit the value."
        )
    driver = _driver_of(error)
    return None if driver is None else driver.translate(error, url)


def _is_unfit(error: BaseException) -> bool:
    """Tell whether the server or the driver refused a value."""
    driver = _driver_of(error)
    if driver is None:
        return isinstance(error, OverflowError | UnicodeEncodeError)
    return driver.is_unfit(error)


def is_disconnect(error: BaseException) -> bool:
    """Tell whether the connection cannot be used any more."""
    error = driver_error(error)
    driver = _driver_of(error)
    return driver is not None and driver.is_disconnect(error)


def is_of_values(error: BaseException) -> bool:
    """
    Tell whether an error counts as caused by a trial's values; if so, other trials can go on.

    Errors of the storage, the host or the memory concern all trials. Any other error that no driver
    has raised counts as caused by the values.
    """
    error = driver_error(error)
    driver = _driver_of(error)
    if driver is None:
        return not isinstance(error, StorageError | HostError | OSError | MemoryError)
    return driver.is_of_values(error)


def is_of_missing_row(error: BaseException) -> bool:
    """Tell whether a FOREIGN KEY refused a write; for an INSERT, the referenced row is missing."""
    error = driver_error(error)
    driver = _driver_of(error)
    return driver is not None and driver.is_of_missing_row(error)
