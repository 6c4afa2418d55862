"""Write values for tables, CSV, JSON and command lines; choose the columns of a table."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.listed_rows import ListedTrial
from studydb.domain.number_names import number_name
from studydb.domain.specs.grammar import parse_value
from studydb.domain.text.display import visible, without_controls

if TYPE_CHECKING:
    from studydb.domain.space.search_space import Space


_LEFT_OUT_IF_EMPTY = ("name", "tags", "parent", "invalidated_at", "changed", "resources")


def plain(value: Any) -> Any:
    """
    Convert a value of any type to a value that JSON can hold.

    NaN and ±Inf become the texts "NaN", "Infinity" and "-Infinity", as in the database; a time
    becomes ISO 8601, and bytes become hexadecimal digits. Mappings and lists are converted item by
    item, and a Decimal becomes a number. A value of any other type becomes its text.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float | Decimal):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return _aware(value).isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)


def _number(value: float | Decimal) -> float | int | str:
    if not math.isfinite(value):
        return number_name(float(value))
    if isinstance(value, Decimal):  # PostgreSQL's sum of integers, for example
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(UTC)


def csv_cell(value: Any) -> Any:
    """
    Convert a value for CSV: None becomes empty; a boolean, list or object becomes JSON.

    Control characters are escaped, because a terminal may show the file.
    """
    written = plain(value)
    if isinstance(written, bool | list | dict):
        return json.dumps(written)
    if isinstance(written, str):
        return without_controls(written)
    return "" if written is None else written


def table_cell(value: Any, *, brief: bool = False) -> str:
    """
    Write a value for a table, on one line.

    Args:
        brief: Round doubles to six significant digits.
    """
    if isinstance(value, datetime):
        return _aware(value).isoformat(" ", "seconds").replace("+00:00", "Z")
    if brief and isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return assignments(
            {path: _rounded(each) if brief else each for path, each in value.items()}
        )
    written = csv_cell(value)
    return visible(written) if isinstance(written, str) else repr(written)


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def trial_fields(row: ListedTrial, space: "Space") -> dict[str, Any]:
    """Return a listed trial's columns by name: `params` by path, and `tags` as one text or None."""
    return {**row._asdict(), "params": space.flatten(row.params), "tags": tags_text(row.tags)}


def used_columns(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table's columns; leave out optional columns, such as tags, that are empty."""
    return [
        column
        for column in columns
        if column not in _LEFT_OUT_IF_EMPTY or any(row[column] not in (None, "") for row in rows)
    ]


def tags_text(tags: Sequence[str]) -> str | None:
    """Join the tags of a trial by commas, which no tag contains; return None for no tags."""
    return ",".join(tags) or None


def assignments(values: Mapping[str, Any]) -> str:
    """Write values as `enqueue` reads them: "lr=0.1 net/act=relu"."""
    return " ".join(f"{visible(path)}={value_text(value)}" for path, value in values.items())


def value_text(value: Any) -> str:
    """
    Write a value in the grammar of specs.

    A text is quoted if it has spaces or unprintable characters, or if the grammar would read it as
    another value or refuse it.
    """
    written = plain(value)
    if not isinstance(written, str):
        return json.dumps(written)
    try:
        bare = parse_value(written) == written and not any(map(str.isspace, written))
    except InvalidSpec:
        bare = False
    return written if bare and written.isprintable() else json.dumps(written)
