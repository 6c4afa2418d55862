"""Errors of writes: if a login may not write, the error names the role that may."""

from collections.abc import Callable
from typing import TypeVar

from studydb.db import Database
from studydb.db.faults import is_of_missing_row
from studydb.domain.errors import StorageBusy, StorageDenied, StorageReadOnly, UnknownStudy
from studydb.domain.roles import Role
from studydb.store import connection
from studydb.store.studies import DELETED

Answered = TypeVar("Answered")


def write(database: Database, call: Callable[[], Answered], *, role: Role) -> Answered:
    """
    Call a function that writes; if the login may not write, the error names the role that may.

    PostgreSQL raises one error for two causes: the server is a standby for now, or the role's
    transactions are always read-only. This error becomes a StorageBusy, so this function looks for
    the second cause after each StorageBusy.

    Args:
        role: The role that may make the call.

    Raises:
        UnknownStudy: A FOREIGN KEY refused a row: the study was deleted.
        StorageDenied: The login lacks a right.
        StorageReadOnly: The login may only read.
        StorageBusy: The database cannot write for now.
    """
    try:
        return call()
    except StorageDenied as error:
        raise StorageDenied(f"{error} {role.advice}") from error
    except StorageBusy:
        _refuse_reader(database, role)
        raise
    except Exception as error:
        if is_of_missing_row(error):
            raise UnknownStudy(DELETED) from error
        raise


def _refuse_reader(database: Database, role: Role) -> None:
    if not database.features.roles:
        return
    with database.begin(write=False) as txn:
        reader = connection.read_only_role(txn)
    if reader is not None:
        raise StorageReadOnly(
            f"In {database.url} the role {reader!r} can only read, because its "
            f"default_transaction_read_only is on. {role.advice}"
        )
