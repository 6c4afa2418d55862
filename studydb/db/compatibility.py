"""Check that a database has the schema that this studydb needs."""

from studydb.db import revisions
from studydb.db.database import Database
from studydb.db.faults import NoTables, no_tables
from studydb.db.schema import study
from studydb.db.urls import check_file
from studydb.domain.errors import SchemaTooNew, SchemaTooOld, StorageError, StorageMissing


def check_schema(database: Database) -> None:
    """
    Compare the database's schema with the schema that this studydb needs.

    Raises:
        StorageMissing: There is no database, or it has no studydb tables.
        StorageError: See `refuse_foreign_tables`.
        SchemaTooOld: `studydb db upgrade` is needed.
        SchemaTooNew: This studydb is older than the schema.
    """
    found = current_version(database)
    if found is None:
        raise _missing_tables(database)
    refuse_newer(database, found)
    if found != revisions.HEAD:
        raise SchemaTooOld(
            f"{database.url} has schema {found}, this studydb needs {revisions.HEAD}. "
            "Run `studydb db upgrade` after all workers of the older version have ended."
        )


def _missing_tables(database: Database) -> NoTables:
    if database.postgresql:
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    else:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    with database.begin(write=False) as txn:
        found = {name for (name,) in txn.raw(sql)[1]}
    others = sorted(found - {revisions.TABLE})  # a downgrade to "base" leaves this table
    if not others:
        return no_tables(database.url)
    refuse_foreign_tables(database)
    return NoTables(
        f"{database.url} has no studydb tables, but other tables, such as {others[0]!r}. Give "
        "the URL of the database that has your studies; or run `studydb db upgrade`, which adds "
        "studydb's tables to this database."
    )


def refuse_foreign_tables(database: Database) -> None:
    """
    Refuse a database where another program, such as Optuna, uses names of studydb's schema.

    Raises:
        StorageError: The database has such a name, but not the table of studydb's schema version.
    """
    sql = (
        "SELECT relname FROM pg_class AS each JOIN pg_namespace AS schema"
        " ON each.relnamespace = schema.oid WHERE schema.nspname = current_schema()"
        if database.postgresql
        else "SELECT name FROM sqlite_master"
    )
    with database.begin(write=False) as txn:
        found = {name for (name,) in txn.raw(sql)[1]}
    tables = study.metadata.tables
    ours = {*tables, *(index.name for table in tables.values() for index in table.indexes)}
    taken = sorted(found & ours)
    # If the version is no longer None, another process has just made the tables.
    if taken and current_version(database) is None:
        raise StorageError(
            f"{database.url} belongs to another program: it has {taken[0]!r}, a name of studydb's "
            "schema, but not the table studydb_version. Give the URL of another database."
        )


def refuse_newer(database: Database, revision: str | None) -> None:
    """Raise SchemaTooNew if this studydb does not know the database's revision."""
    if revision is not None and revision not in revisions.REVISIONS:
        raise SchemaTooNew(
            f"{database.url} has schema {revision}, this studydb knows {revisions.HEAD} at most. "
            "Upgrade studydb on this machine."
        )


def current_version(database: Database) -> str | None:
    """
    Read the schema's revision; None if the database has no studydb tables.

    Raises:
        StorageMissing: There is no such file or database.
    """
    if not database.postgresql:
        check_file(database.path)
        if not database.path.exists():
            raise StorageMissing(
                f"There is no database at {database.path}. `studydb create` or "
                "`studydb db upgrade` makes one. To use another database, give --storage or set "
                "$STUDYDB_STORAGE."
            )
    try:
        with database.begin(write=False) as txn:
            rows = txn.raw(f"SELECT version_num FROM {revisions.TABLE}")[1]  # noqa: S608
    except NoTables:
        return None
    return str(rows[0][0]) if rows else None
