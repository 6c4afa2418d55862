"""
Chains: statements that PostgreSQL runs as a single statement, and SQLite one after another.

A single statement needs no BEGIN and no COMMIT, so it costs one round trip. Inside a transaction
block, too, a single statement costs less than several statements. SQLite runs the statements one
after another, because it allows no CTE that writes. SQLite runs in the process, so a single
statement would save no round trip.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from studydb.db.statement import BulkInsert, Compiled, compile_for

MAIN = "main"
_IF_MAIN = "EXISTS (SELECT FROM main)"
_FROM_MAIN = "FROM main"
_ROW = "SELECT * FROM main"
LAZILY = "set_config('synchronous_commit', 'off', true) = 'off'"
"""A condition that is always true; as a side effect the COMMIT does not wait for the disk."""

_ROW_LAZILY = f"{_ROW} WHERE {LAZILY}"

Link = sa.Update | sa.Insert | BulkInsert


class _Of(sa.ColumnElement[Any]):
    inherit_cache = True

    def __init__(self, name: str, column: sa.ColumnElement[Any]) -> None:
        self.name, self.column, self.type = name, column, column.type


@compiles(_Of, "postgresql")
def _of_postgresql(element: _Of, compiler: SQLCompiler, **_kw: Any) -> str:
    if element.name == MAIN and isinstance(compiler.statement, sa.Insert):
        return f"{MAIN}.{element.column.key}"  # the chain appends FROM main
    return f"(SELECT {element.name}.{element.column.key} FROM {element.name})"  # noqa: S608  the names are constants


@compiles(_Of, "sqlite")
def _of_sqlite(element: _Of, compiler: SQLCompiler, **kw: Any) -> str:
    bind = sa.bindparam(f"{element.name}_{element.column.key}", type_=element.column.type)
    return compiler.process(bind, **kw)


class _Found(sa.ColumnElement[Any]):
    inherit_cache = True
    type = sa.types.NULLTYPE  # if Boolean, SQLite's dialect would append "= 1"

    def __init__(self, name: str) -> None:
        self.name = name


@compiles(_Found, "postgresql")
def _found_postgresql(element: _Found, *_: Any, **_kw: Any) -> str:
    return f"EXISTS (SELECT FROM {element.name})"


@compiles(_Found, "sqlite")
def _found_sqlite(*_: Any, **_kw: Any) -> str:
    return "true"  # SQLite runs this statement only if the earlier one returned a row


def of(name: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Refer to a column of the row that an earlier statement of the chain returns."""
    return _Of(name, column)


def of_main(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Refer to a column of the row that the main statement of a chain returns."""
    return _Of(MAIN, column)


def found(name: str) -> sa.ColumnElement[bool]:
    """Make an expression that is true if an earlier statement of the chain returns a row."""
    return _Found(name)


class Chain:
    """
    A main statement that returns at most one row, and links that run only if there is a row.

    A link is an UPDATE … WHERE without RETURNING, an INSERT … SELECT without FROM, or a
    `BulkInsert`. On PostgreSQL the chain appends a condition or FROM main to the link's SQL, so
    that the link does nothing without a row; on SQLite a link is not run without a row. Links lock
    nothing before the main statement has returned its row. PostgreSQL chooses the order of links. A
    bind has the same value in all statements of the chain.

    The statements of `before` run in their order before the main statement; each returns at most
    one row. On PostgreSQL the order comes from `of` and `found`: each of these statements except
    the first must refer to the one before it, and the main statement must refer to the last. If a
    statement returns no row, the later statements write nothing: on PostgreSQL because they refer
    to the missing row, on SQLite because they are not run. What an earlier statement has written
    stays. So a statement of `before` may write only if its conditions ensure that the statements
    after it, up to the main statement, will return a row.

    On PostgreSQL the constants of a chain are part of its SQL, because each bind takes time in the
    driver and on the server. A trial that flushes each step is 3 % faster without these binds.
    """

    __slots__ = ("_steps", "_whole", "before", "main", "then")

    def __init__(
        self,
        main: sa.Executable,
        *,
        before: Mapping[str, sa.Executable] | None = None,
        **then: Link,
    ) -> None:
        self.main, self.before, self.then = main, dict(before or {}), then
        self._whole: dict[tuple[bool, bool], Compiled] = {}
        self._steps: dict[str, Compiled] = {}

    def whole(self, dialect: Dialect, *, durable: bool, one_row: bool = False) -> Compiled:
        """
        Return the single statement that PostgreSQL runs.

        Args:
            durable: Whether the COMMIT waits for the disk.
            one_row: Whether the chain's `BulkInsert` inserts a single row.
        """
        whole = self._whole.get((durable, one_row))
        if whole is None:
            whole = self._join(dialect, durable=durable, one_row=one_row)
            self._whole[durable, one_row] = whole
        return whole

    def steps(self, dialect: Dialect) -> Mapping[str, Compiled]:
        """Return the statements that SQLite runs one after another, by name."""
        if not self._steps:
            self._steps = dict(self._compile(dialect, one_row=False))
        return self._steps

    def _compile(self, dialect: Dialect, *, one_row: bool) -> Iterator[tuple[str, Compiled]]:
        for name, part in {**self.before, MAIN: self.main, **self.then}.items():
            yield (
                name,
                part.compiled(dialect, one_row=one_row)
                if isinstance(part, BulkInsert)
                else compile_for(part, dialect, spell_constants=True),
            )

    def _join(self, dialect: Dialect, *, durable: bool, one_row: bool) -> Compiled:
        parts = dict(self._compile(dialect, one_row=one_row))
        for name, link in self.then.items():
            gated = f"{parts[name].sql} {_gate(link, one_row=one_row)}"
            parts[name] = replace(parts[name], sql=gated)
        ctes = ",\n".join(f"{name} AS ({part.sql})" for name, part in parts.items())
        row = _ROW if durable else _ROW_LAZILY
        return Compiled(
            sql=f"WITH {ctes}\n{row}",
            defaults=_merged(part.defaults for part in parts.values()),
            encode={name: codec for part in parts.values() for name, codec in part.encode.items()},
            required=frozenset[str]().union(*(part.required for part in parts.values())),
            row=parts[MAIN].row,
            decode=parts[MAIN].decode,
        )


def _gate(link: Link, *, one_row: bool) -> str:
    if isinstance(link, sa.Update):
        return f"AND {_IF_MAIN}"
    if isinstance(link, sa.Insert) or one_row:
        return _FROM_MAIN  # one scan of `main`; a subquery for each column made a claim 5 % slower
    return f"WHERE {_IF_MAIN}"


def _merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if merged.setdefault(name, value) != value:
                raise ValueError(f"The bind {name!r} has two defaults in one chain.")
    return merged
