"""
Column types: they convert between the values of Python and of each database.

A metric may be NaN or ±Inf. jsonb rejects these numbers, and SQLite turns NaN into NULL. So JSON,
and a double on SQLite, hold them as the texts "NaN", "Infinity" and "-Infinity". Queries order by
scores, which are never NaN and are stored as numbers. If a query orders by values (see
`store/results.py`), a CASE puts these texts in their places among the numbers.
"""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from studydb.domain.number_names import NUMBER_NAMES, number_name

_NUMBER_NAME = re.compile(rf"\\*({'|'.join(NUMBER_NAMES)})")

_write_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

_write_usual_json = msgspec.json.Encoder().encode
_read_json = msgspec.json.Decoder().decode
"""msgspec takes an eighth of the instructions of `json`; `json` handles what msgspec cannot."""


def encode_json(value: Any) -> object:
    """Replace NaN and ±Inf by texts such as "NaN"; put a backslash before a text like these."""
    if isinstance(value, float):
        return value if math.isfinite(value) else number_name(value)
    if isinstance(value, str):
        return "\\" + value if _NUMBER_NAME.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: encode_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_json(item) for item in value]
    return value


def decode_json(value: Any) -> object:
    """Undo `encode_json`."""
    if isinstance(value, str):
        if _NUMBER_NAME.fullmatch(value):
            return value[1:] if value.startswith("\\") else float(value)
        return value
    if isinstance(value, dict):
        return {
            key: item if type(item) is float else decode_json(item)  # the usual case
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [item if type(item) is float else decode_json(item) for item in value]
    return value


UNREADABLE = "(JSON that studydb cannot read)"
"""The only key of the object that replaces unreadable JSON."""


def load_json(text: str | bytes) -> Any:
    """
    Read the text of a JSON column; unreadable text becomes an object that gives the error.

    Another program may have written a text that Python refuses: thousands of nested lists, or an
    integer of thousands of digits. Such a text must not make listings and claims fail.
    """
    try:
        return _read_json(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # such as half of a surrogate pair or NaN, which `json` reads, or no JSON at all
    try:
        return json.loads(text if isinstance(text, str) else str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: str(error)}


def dump_json(value: Any) -> str:
    """Write the text of a JSON column."""
    try:
        text = _write_usual_json(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _write_json(encode_json(value))
    if "null" in text or "NaN" in text or "Infinity" in text:  # msgspec writes NaN as null
        return _write_json(encode_json(value))
    return text


class Json(TypeDecorator[Any]):
    """JSONB on PostgreSQL, text on SQLite; Python's None is NULL."""

    impl = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> object:
        return None if value is None else encode_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> object:
        try:
            return decode_json(value)
        except RecursionError as error:
            return {UNREADABLE: str(error)}


class Texts(TypeDecorator[Any]):
    """A list of texts, read as a tuple in alphabetical order; anything else is read as ()."""

    impl = sa.JSON().with_variant(JSONB(), "postgresql")
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[str, ...]:
        return () if not isinstance(value, list) else tuple(sorted(map(str, value)))


class Number(TypeDecorator[float]):
    """A double; SQLite stores NaN, Inf and -Inf as texts."""

    impl = sa.Double
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        return _bind_sqlite_number if dialect.name == "sqlite" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return _read_sqlite_number if dialect.name == "sqlite" else None


def _bind_sqlite_number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else number_name(value)


def _read_sqlite_number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def to_text(moment: datetime) -> str:
    """Write a moment in UTC with milliseconds, as SQLite's strftime('%Y-%m-%d %H:%M:%f') does."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC with its time zone; a text on SQLite, which has no such type."""

    impl = sa.DateTime(timezone=True).with_variant(sa.Text, "sqlite")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | str | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone; moments in the database are UTC.")
        return to_text(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if isinstance(value, str):
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        return None if value is None else value.astimezone(UTC)
