"""The metadata of all tables, and how their columns, keys and indexes are written."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def table_with_id(name: str, *items: SchemaItem) -> sa.Table:
    """Make a table whose ids are never reused."""
    key = sa.Column("id", Id, sa.Identity(), primary_key=True)
    return sa.Table(name, METADATA, key, *items, sqlite_autoincrement=True)


def study_id_column() -> sa.Column[int]:
    return sa.Column("study_id", Id, sa.ForeignKey("study.id"), nullable=False)


def one_of(column: str, values: Iterable[StrEnum]) -> dict[str, str]:
    """Make the check that a column holds one of these values, or NULL."""
    names = ", ".join(f"'{value}'" for value in values)
    return {column: f"{{{column}}} IN ({names})"}


HEX = "ltrim({uuid}, '0123456789abcdef-') = ''"
UUID = f"length({{uuid}}) = 36 AND {HEX}"
"""
The check of a column `uuid`. Names of files contain UUIDs, so a UUID must contain no "/" or "..".
The table `worker` has another check.
"""


def required(name: str, kind: Any, *args: Any, **options: Any) -> sa.Column[Any]:
    """Make a column that is not NULL."""
    return sa.Column(name, kind, *args, nullable=False, **options)


def partial_index(
    name: str, *columns: str, where: str, sqlite_where: str | None = None, unique: bool = False
) -> sa.Index:
    """
    Make an index of the rows that fulfil a condition.

    Args:
        sqlite_where: The condition for SQLite, if it is written differently there.
    """
    return sa.Index(
        name,
        *columns,
        unique=unique,
        postgresql_where=sa.text(where),
        sqlite_where=sa.text(sqlite_where or where),
    )
