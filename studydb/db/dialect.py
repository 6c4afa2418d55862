"""
What PostgreSQL and SQLite do or write differently.

Packages other than db/ ask for a feature, never for the name of a database.
"""

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from studydb.db.types import UtcDateTime


@dataclass(frozen=True, slots=True)
class Features:
    """
    What one kind of database can do.

    Attributes:
        several_hosts: Whether processes on several machines can use it.
        roles: Whether logins have rights, so that one can be allowed only to read.
        writing_ctes: Whether a CTE may write, so that a chain is one statement.
        concurrent_writers: Whether several transactions can write at a time. If not, BEGIN waits
            until the other writer has ended.
    """

    several_hosts: bool
    roles: bool
    writing_ctes: bool
    concurrent_writers: bool


FEATURES = {
    "postgresql": Features(
        several_hosts=True, roles=True, writing_ctes=True, concurrent_writers=True
    ),
    "sqlite": Features(
        several_hosts=False, roles=False, writing_ctes=False, concurrent_writers=False
    ),
}
"""The features by SQLAlchemy's name of the backend."""

NOW = "now"
"""
The bind for the time: `Txn` sets it to the clock of a test, or on SQLite to the host's clock. NULL
means the server's clock.
"""


class _Now(FunctionElement[Any]):
    """The database's clock, which is the same for all workers."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(_Now, "postgresql")
def _now_postgresql(element: _Now, compiler: SQLCompiler, **kw: Any) -> str:
    injected = compiler.process(_now_bind(), **kw)
    return f"coalesce(CAST({injected} AS timestamptz), clock_timestamp())"


@compiles(_Now, "sqlite")
def _now_sqlite(element: _Now, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(_now_bind(), **kw)


def _now_bind() -> sa.BindParameter[Any]:
    return sa.bindparam(NOW, None, UtcDateTime())


class _After(FunctionElement[Any]):
    type = UtcDateTime()
    inherit_cache = True


@compiles(_After, "postgresql")
def _after_postgresql(element: _After, compiler: SQLCompiler, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + make_interval(secs => {seconds}))"


@compiles(_After, "sqlite")
def _after_sqlite(element: _After, compiler: SQLCompiler, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('%Y-%m-%d %H:%M:%f', {moment}, ({seconds}) || ' seconds')"


def now() -> sa.ColumnElement[Any]:
    """Return the time of this statement by the database's clock, as SQL."""
    return _Now()


def after(moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[float]) -> sa.ColumnElement[Any]:
    """Return `moment` plus `seconds`, as SQL."""
    return _After(moment, seconds)


class _IsListed(FunctionElement[Any]):
    type = sa.types.NULLTYPE  # a Boolean would be followed by "= 1" on SQLite
    inherit_cache = True


@compiles(_IsListed, "postgresql")
def _is_listed_postgresql(element: _IsListed, compiler: SQLCompiler, **kw: Any) -> str:
    column, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} = ANY({values})"


@compiles(_IsListed, "sqlite")
def _is_listed_sqlite(element: _IsListed, compiler: SQLCompiler, **kw: Any) -> str:
    column, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"  # noqa: S608  compiled


class _IsObject(FunctionElement[Any]):
    type = sa.Boolean()
    inherit_cache = True


@compiles(_IsObject, "postgresql")
def _is_object_postgresql(element: _IsObject, compiler: SQLCompiler, **kw: Any) -> str:
    return f"jsonb_typeof({compiler.process(element.clauses, **kw)}) = 'object'"


@compiles(_IsObject, "sqlite")
def _is_object_sqlite(element: _IsObject, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_type({compiler.process(element.clauses, **kw)}) = 'object'"


def is_object(document: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that a JSON column holds an object."""
    return _IsObject(document)


class _List(sa.types.TypeDecorator[Any]):
    """A bound list: an array on PostgreSQL, JSON text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, of: type[Any] = sa.BigInteger) -> None:
        super().__init__()
        self.of = of

    def load_dialect_impl(self, dialect: sa.engine.Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.ARRAY(self.of))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: sa.engine.Dialect) -> list[Any] | str:
        return list(value) if dialect.name == "postgresql" else json.dumps(list(value))


def is_listed(column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column's integer or text is in the list bound as `name`."""
    of = sa.Text if isinstance(column.type, sa.Text) else sa.BigInteger
    return _IsListed(column, sa.bindparam(name, type_=_List(of)))
