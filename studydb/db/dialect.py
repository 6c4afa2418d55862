"""
The differences between PostgreSQL and SQLite: what they can do, and how their SQL is written.

Packages other than db/ ask for a feature, never for the name of a database.
"""

import json
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from studydb.db.types import Texts, UtcDateTime


class Features(Struct, frozen=True):
    """
    What one kind of database can do.

    Attributes:
        several_hosts: Whether processes on several machines can use the database.
        roles: Whether logins have rights, so that a login may be allowed only to read.
        concurrent_writers: Whether several transactions can write at a time. If not, the BEGIN of
            a transaction that writes waits until no other such transaction runs.
    """

    several_hosts: bool
    roles: bool
    concurrent_writers: bool


FEATURES = {
    "postgresql": Features(several_hosts=True, roles=True, concurrent_writers=True),
    "sqlite": Features(several_hosts=False, roles=False, concurrent_writers=False),
}
"""The features by SQLAlchemy's name of the backend."""

NOW = "now"
"""
The bind for the time. `Txn` binds the time of `Database.clock` if a test or a simulation has set
that clock. Otherwise `Txn` binds the host's time on SQLite. On PostgreSQL it binds NULL, and the
server reads its own clock; once a caller has read `Txn.now`, `Txn` binds that time.
"""


class _Function(FunctionElement[Any]):
    """SQL that each dialect writes in its own way; `{0}` is the first argument."""

    postgresql: str
    sqlite: str


@compiles(_Function, "postgresql")
def _postgresql(element: _Function, compiler: SQLCompiler, **kw: Any) -> str:
    return element.postgresql.format(*(compiler.process(each, **kw) for each in element.clauses))


@compiles(_Function, "sqlite")
def _sqlite(element: _Function, compiler: SQLCompiler, **kw: Any) -> str:
    return element.sqlite.format(*(compiler.process(each, **kw) for each in element.clauses))


class _Now(_Function):
    type = UtcDateTime()
    inherit_cache = True
    postgresql = "coalesce(CAST({0} AS timestamptz), clock_timestamp())"
    sqlite = "{0}"


class _After(_Function):
    type = UtcDateTime()
    inherit_cache = True
    postgresql = "({0} + make_interval(secs => {1}))"
    sqlite = "strftime('%Y-%m-%d %H:%M:%f', {0}, ({1}) || ' seconds')"


class _IsListed(_Function):
    type = sa.types.NULLTYPE  # if Boolean, SQLite's dialect would append "= 1"
    inherit_cache = True
    postgresql = "{0} = ANY({1})"
    sqlite = "{0} IN (SELECT value FROM json_each({1}))"


class _IsObject(_Function):
    type = sa.Boolean()
    inherit_cache = True
    postgresql = "jsonb_typeof({0}) = 'object'"
    sqlite = "json_type({0}) = 'object'"


class _TextsOf(_Function):
    type = Texts()
    inherit_cache = True
    postgresql = "ARRAY{0}"
    sqlite = "(SELECT json_group_array(text) FROM {0})"


def now() -> sa.ColumnElement[Any]:
    """Return the time by the database's clock, as SQL; all workers share this clock."""
    return _Now(sa.bindparam(NOW, None, UtcDateTime()))


def after(moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[float]) -> sa.ColumnElement[Any]:
    """Return `moment` plus `seconds`, as SQL."""
    return _After(moment, seconds)


def is_object(document: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return an expression that is true if a JSON column holds an object."""
    return _IsObject(document)


def texts_of(query: sa.Select[tuple[str]]) -> sa.ColumnElement[Any]:
    """
    Return an expression for the list of the texts in a query's column `text`.

    The list is read as a sorted tuple (`db.types.Texts`). On PostgreSQL the expression is an array;
    an aggregate such as jsonb_agg takes 20 µs longer.
    """
    return _TextsOf(query.scalar_subquery())


class _List(sa.types.TypeDecorator[Any]):
    """A bound list: an array on PostgreSQL, JSON text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item_type: type[Any] = sa.BigInteger) -> None:
        super().__init__()
        self.item_type = item_type

    def load_dialect_impl(self, dialect: sa.engine.Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.ARRAY(self.item_type))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: sa.engine.Dialect) -> list[Any] | str:
        return list(value) if dialect.name == "postgresql" else json.dumps(list(value))


def is_listed(column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """Return an expression that is true if a column's value is in the list bound as `name`."""
    item_type = sa.Text if isinstance(column.type, sa.Text) else sa.BigInteger
    return _IsListed(column, sa.bindparam(name, type_=_List(item_type)))
