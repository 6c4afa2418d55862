"""
Chains: statements that PostgreSQL runs as a single statement, and SQLite one after another.

A single statement needs no BEGIN and no COMMIT, so it costs one round trip. It consists of CTEs
that write, which SQLite does not have. SQLite runs in the process and has no round trips to save.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from studydb.db.statement import BulkInsert, Compiled, compile_for

FIRST = "first"
_IF_FIRST = "EXISTS (SELECT FROM first)"
_ROW = "SELECT * FROM first"
LAZILY = "set_config('synchronous_commit', 'off', true) = 'off'"
"""A condition that is always true; as a side effect the COMMIT does not wait for the disk."""

_ROW_LAZILY = f"{_ROW} WHERE {LAZILY}"

Link = sa.Update | sa.Insert | BulkInsert


class _OfFirst(sa.ColumnElement[Any]):
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[Any]) -> None:
        self.column, self.type = column, column.type


@compiles(_OfFirst, "postgresql")
def _of_first_postgresql(element: _OfFirst, *_: Any, **_kw: Any) -> str:
    return f"(SELECT {FIRST}.{element.column.key} FROM {FIRST})"  # noqa: S608  the names are constants


@compiles(_OfFirst, "sqlite")
def _of_first_sqlite(element: _OfFirst, compiler: SQLCompiler, **kw: Any) -> str:
    bind = sa.bindparam(f"{FIRST}_{element.column.key}", type_=element.column.type)
    return compiler.process(bind, **kw)


def of_first(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Refer to a column of the row that the first statement of a chain returns."""
    return _OfFirst(column)


class Chain:
    """
    A first statement that returns at most one row, and links that run only if there is a row.

    A link is an UPDATE … WHERE without RETURNING, an INSERT … SELECT without WHERE, or a
    `BulkInsert`. The chain appends to the link's SQL the condition that there is a row. Links lock
    nothing before the first statement has returned its row. PostgreSQL chooses the order of links.
    A bind has the same value in all statements of the chain.

    On PostgreSQL the constants of a chain are part of its SQL, because each bind takes time in the
    driver and on the server. A trial that flushes each step is 3 % faster without these binds.
    """

    __slots__ = ("_links", "_whole", "first", "then")

    def __init__(self, first: sa.Executable, **then: Link) -> None:
        self.first, self.then = first, then
        self._whole: dict[tuple[bool, bool], Compiled] = {}
        self._links: tuple[Compiled, ...] = ()

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

    def links(self, dialect: Dialect) -> tuple[Compiled, ...]:
        """Return the statements that SQLite runs one after another."""
        if not self._links:
            self._links = tuple(self._compile(dialect, one_row=False))
        return self._links

    def _compile(self, dialect: Dialect, *, one_row: bool) -> Iterator[Compiled]:
        for link in (self.first, *self.then.values()):
            yield (
                link.compiled(dialect, one_row=one_row)
                if isinstance(link, BulkInsert)
                else compile_for(link, dialect, spell_constants=True)
            )

    def _join(self, dialect: Dialect, *, durable: bool, one_row: bool) -> Compiled:
        first, *links = self._compile(dialect, one_row=one_row)
        gated = (
            replace(compiled, sql=f"{compiled.sql} {_joint(link)} {_IF_FIRST}")
            for link, compiled in zip(self.then.values(), links, strict=True)
        )
        parts = dict(zip((FIRST, *self.then), (first, *gated), strict=True))
        ctes = ",\n".join(f"{name} AS ({part.sql})" for name, part in parts.items())
        row = _ROW if durable else _ROW_LAZILY
        return Compiled(
            sql=f"WITH {ctes}\n{row}",
            defaults=_merged(part.defaults for part in parts.values()),
            encode={name: codec for part in parts.values() for name, codec in part.encode.items()},
            required=frozenset[str]().union(*(part.required for part in parts.values())),
            row=first.row,
            decode=first.decode,
        )


def _joint(link: Link) -> str:
    return "AND" if isinstance(link, sa.Update) else "WHERE"


def _merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if merged.setdefault(name, value) != value:
                raise ValueError(f"The bind {name!r} has two defaults in one chain.")
    return merged
