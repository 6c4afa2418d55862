"""Write parts of DDL: identifiers, literals, and expressions that read a value inside JSON."""

# ruff: noqa: S608  this file quotes identifiers and texts

from collections.abc import Sequence
from enum import StrEnum

from studydb.domain.number_names import NUMBER_NAMES

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The bounds of a bigint; `postgresql_value` gives NULL for an integer outside these bounds."""


class ValueKind(StrEnum):
    """The type of the values in a column of a wide view."""

    DOUBLE = "double"
    INTEGER = "integer"
    TEXT = "text"


def quoted(name: str) -> str:
    """Write an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Write a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


NOT_FINITE = f"({', '.join(map(literal, NUMBER_NAMES))})"
"""The texts for NaN and ±Inf in JSON, and in metrics' values on SQLite; see `encode_json`."""


def postgresql_value(document: str, keys: Sequence[str], *, kind: ValueKind) -> str:
    """
    Write the PostgreSQL expression of the value at a path of keys.

    Args:
        document: A column of type jsonb.
        keys: The keys of the nested objects that lead to the value.
        kind: The type of the expression. A numeric expression is NULL for a value that is not a
            number; a text expression writes a list or an object as JSON.
    """
    path = ", ".join(map(literal, keys))
    found = f"({document} #> ARRAY[{path}])"
    if kind is ValueKind.TEXT:
        return _unescaped(f"({found} #>> '{{}}')")
    if kind is ValueKind.INTEGER:
        return (
            f"CASE jsonb_typeof({found}) WHEN 'number' THEN "
            f"CASE WHEN {found} BETWEEN '{_LEAST}' AND '{_MOST}' "
            f"THEN CAST({found} AS bigint) END END"
        )
    return (
        f"CASE jsonb_typeof({found}) WHEN 'number' THEN CAST({found} AS double precision) "
        f"WHEN 'string' THEN CASE WHEN {found} #>> '{{}}' IN {NOT_FINITE} "
        f"THEN CAST({found} #>> '{{}}' AS double precision) END END"
    )


def sqlite_value(document: str, keys: Sequence[str], *, kind: ValueKind) -> str:
    """
    Write the SQLite expression of the value at a path of keys; see `postgresql_value`.

    NaN and ±Inf stay texts. The expression goes through `json_each`, key by key, because a JSON
    path misreads a quote or an accent in a key.
    """
    sources, wanted = [], []
    for depth, key in enumerate(keys):
        above = f"CASE e{depth - 1}.type WHEN 'object' THEN e{depth - 1}.value END"
        sources.append(f"json_each({above if depth else document}) e{depth}")
        wanted.append(f"e{depth}.key = {literal(key)}")
    last = f"e{len(keys) - 1}"
    if kind is ValueKind.INTEGER:
        value = (
            f"CASE WHEN {last}.type IN ('integer', 'real') THEN CAST({last}.value AS INTEGER) END"
        )
    elif kind is ValueKind.DOUBLE:
        value = (
            f"CASE WHEN {last}.type IN ('integer', 'real') THEN CAST({last}.value AS REAL) "
            f"WHEN {last}.type = 'text' AND {last}.value IN {NOT_FINITE} THEN {last}.value END"
        )
    else:
        value = (
            f"CASE WHEN {last}.type IN ('true', 'false') THEN {last}.type "
            f"WHEN {last}.type = 'text' THEN {_unescaped(f'{last}.value')} "
            f"ELSE CAST({last}.value AS TEXT) END"
        )
    return f"(SELECT {value} FROM {', '.join(sources)} WHERE {' AND '.join(wanted)})"


def _unescaped(text: str) -> str:
    """Write SQL that removes the backslash that our JSON puts before a text like "NaN"."""
    return (
        f"CASE WHEN substr({text}, 1, 1) = '\\' AND ltrim({text}, '\\') IN {NOT_FINITE} "
        f"THEN substr({text}, 2) ELSE {text} END"
    )
