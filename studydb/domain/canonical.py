"""Plain values, which JSON can hold: their checks, and their canonical form for hashes."""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.text.display import with_article

MAX_DEPTH = 32
"""How deep lists and dicts may be nested; the limit also refuses a dict that contains itself."""

LARGEST_DOUBLE = int(sys.float_info.max)
"""
The largest accepted integer, because other readers of the JSON keep numbers as doubles. Integers
above 2**53 are accepted, because PostgreSQL returns a double such as 1e300 as an integer.
"""


_NUMBERS = (int, float)
"""A tuple, because `is_number` would take twice as long if it made a union at each call."""


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float; a bool is neither."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def is_integral(value: Any) -> bool:
    """Whether a value is a number without a fraction, such as 3 and 3.0."""
    return is_number(value) and (isinstance(value, int) or value.is_integer())


def plain(value: Any, *, subject: str, depth: int = 0) -> Any:
    """
    Convert a value to a plain one: None, bool, int, float, str, list or dict.

    NumPy's scalars become Python's, tuples become lists, -0.0 becomes 0.0 (PostgreSQL's jsonb has
    no negative zero).

    Args:
        subject: The subject of the error's message, such as "Parameter 'model/width'".
        depth: The number of lists and dicts that contain the value.

    Raises:
        InvalidSpec: The value is NaN, infinite, an integer above `LARGEST_DOUBLE` or below its
            negative, nested too deeply, or of a type that JSON lacks; a key of a dict is not a
            text; or `plain_text` refuses a text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value, subject=subject)
    if isinstance(value, int):
        if abs(value) > LARGEST_DOUBLE:
            raise InvalidSpec(f"{subject} is an integer outside ±1.7e308; give it as text.")
        return int(value)
    if isinstance(value, float):
        return _plain_float(float(value), subject)
    if isinstance(value, list | tuple | Mapping):
        return _plain_container(value, subject, depth)
    if getattr(value, "ndim", None) == 0:
        unboxed = value.item()
        if type(unboxed) is not type(value):
            return plain(unboxed, subject=subject, depth=depth)
    raise InvalidSpec(
        f"{subject} is {with_article(type(value).__name__)}, which JSON cannot hold; "
        "use numbers, texts, booleans, None, or lists and dicts of them."
    )


def plain_text(text: str, *, subject: str) -> str:
    """
    Check that a text can be stored in a database.

    Raises:
        InvalidSpec: The text holds a NUL character or half of a surrogate pair.
    """
    if "\0" in text:
        raise InvalidSpec(f"{subject} holds a NUL character, which SQL cannot hold; remove it.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSpec(
            f"{subject} holds {text!r}, which is not Unicode text; decode its bytes properly."
        ) from None
    return str(text)


def _plain_float(value: float, subject: str) -> float:
    if not math.isfinite(value):
        raise InvalidSpec(f"{subject} is {value}, which JSON cannot hold; use None or a text.")
    return value + 0.0


def _plain_container(value: Any, subject: str, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise InvalidSpec(f"{subject} is nested more than {MAX_DEPTH} levels deep; flatten it.")
    if not isinstance(value, Mapping):
        return [plain(item, subject=subject, depth=depth + 1) for item in value]
    for key in value:
        if not isinstance(key, str):
            raise InvalidSpec(f"{subject} has the key {key!r}; keys of dicts must be texts.")
    return {
        plain_text(key, subject=subject): plain(item, subject=subject, depth=depth + 1)
        for key, item in value.items()
    }


def canonical_json(value: Any) -> str:
    """
    Write a plain value so that equal values give equal texts.

    Keys are sorted, and there is no white space. A float without a fraction is written as the
    integer that its shortest decimal form denotes, because PostgreSQL returns 1e30 as 10**30. (The
    double itself is 1000000000000000019884624838656.)

    Raises:
        ValueError: The value contains NaN or an infinity (see `plain`).
    """
    return _write_canonical(_integral(value))


_write_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return shortest_integer(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value


def shortest_integer(value: float) -> int:
    """Return the integer that a double's shortest decimal form denotes: 10**23 for 1e23."""
    return int(Decimal(repr(value)))


def params_hash(params: Mapping[str, Any]) -> str:
    """
    Hash params: equal params have equal hashes, whatever the order of their keys.

    Returns:
        32 hexadecimal characters: the first half of SHA-256 over `canonical_json`.
    """
    return hashlib.sha256(canonical_json(params).encode()).hexdigest()[:32]
