"""What JSON can hold: checked on the way in, and written in one canonical form for hashes."""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from studydb.domain.errors import InvalidSpec

MAX_DEPTH = 32
"""Lists and dicts inside each other; a dict that holds itself ends here, not in the interpreter."""

_LARGEST = int(sys.float_info.max)
"""
Integers stay in the range of a double, or other readers of the JSON would fail. All of it: a large
double comes back from PostgreSQL as an integer.
"""


def is_number(value: Any) -> bool:
    """Whether an int or a float; a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integral(value: Any) -> bool:
    """Whether a number without a fraction: 3 and 3.0."""
    return is_number(value) and (isinstance(value, int) or value.is_integer())


def plain(value: Any, *, where: str, depth: int = 0) -> Any:
    """
    Convert a value to what JSON holds: None, bool, int, float, str, list, dict.

    Numpy scalars become numbers, tuples become lists, -0.0 becomes 0.0 (PostgreSQL's jsonb has
    no negative zero).

    Args:
        value: As the user gave it.
        where: What to call it in an error, for example "Parameter 'model/width'".
        depth: How many lists and dicts are around it already.

    Raises:
        InvalidSpec: JSON cannot hold it: NaN, an infinity, another type, text that is no Unicode.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value, where=where)
    if isinstance(value, int):
        return _plain_int(int(value), where)
    if isinstance(value, float):
        return _plain_float(float(value), where)
    if isinstance(value, list | tuple | Mapping):
        return _plain_container(value, where, depth)
    if getattr(value, "ndim", None) == 0:
        unboxed = value.item()
        if type(unboxed) is not type(value):
            return plain(unboxed, where=where, depth=depth)
    raise InvalidSpec(
        f"{where} is {_article(type(value).__name__)}, which JSON cannot hold; "
        "use numbers, texts, booleans, None, or lists and dicts of them."
    )


def plain_text(text: str, *, where: str) -> str:
    """
    Check that a text can be stored in a database.

    Raises:
        InvalidSpec: It holds a NUL character or half of a surrogate pair.
    """
    if "\0" in text:
        raise InvalidSpec(f"{where} holds a NUL character, which SQL cannot hold; remove it.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSpec(
            f"{where} holds {text!r}, which is not Unicode text; decode its bytes properly."
        ) from None
    return str(text)


def _plain_int(value: int, where: str) -> int:
    if abs(value) > _LARGEST:
        raise InvalidSpec(f"{where} is an integer beyond 1.7e308; give it as text.")
    return value


def _plain_float(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise InvalidSpec(f"{where} is {value}, which JSON cannot hold; use None or a text for it.")
    return value + 0.0


def _plain_container(value: Any, where: str, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise InvalidSpec(f"{where} is nested more than {MAX_DEPTH} levels deep; flatten it.")
    if not isinstance(value, Mapping):
        return [plain(item, where=where, depth=depth + 1) for item in value]
    for key in value:
        if not isinstance(key, str):
            raise InvalidSpec(f"{where} has the key {key!r}; keys of dicts must be texts.")
    return {
        plain_text(key, where=where): plain(item, where=where, depth=depth + 1)
        for key, item in value.items()
    }


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def canonical_json(value: Any) -> str:
    """
    Write a plain value so that equal values give equal texts.

    Keys are sorted, there is no white space, and a float without a fraction is written as the
    integer that it equals: a database may give 1e16 back as an integer.

    Raises:
        ValueError: A NaN or an infinity (see `plain`).
    """
    return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value


def params_hash(params: Mapping[str, Any]) -> str:
    """
    Name a configuration: equal params, however ordered, have equal hashes.

    Returns:
        32 hexadecimal characters: the first half of SHA-256 over `canonical_json`.
    """
    return hashlib.sha256(canonical_json(params).encode()).hexdigest()[:32]
