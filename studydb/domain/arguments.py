"""Checks of numbers and flags that users give; an error names the argument and the cure."""

import operator
from typing import Any

from studydb.domain.errors import InvalidSpec


def integer(name: str, value: Any) -> int:
    """
    Read an integer; NumPy's integers are accepted.

    Raises:
        InvalidSpec: The value is not an integer, or is True or False.
    """
    try:
        whole: Any = None if isinstance(value, bool) else value
        return operator.index(whole)
    except TypeError:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer.") from None


def flag(name: str, value: Any) -> bool:
    """
    Read True or False.

    Raises:
        InvalidSpec: The value is not a bool.
    """
    if not isinstance(value, bool):
        raise InvalidSpec(f"{name} is {value!r}; it must be True or False.")
    return value


def count(name: str, value: Any, *, least: int) -> int:
    """
    Read an integer with a lower bound.

    Raises:
        InvalidSpec: The value is not an integer, or is below `least`.
    """
    try:
        read = integer(name, value)
    except InvalidSpec:
        read = least - 1
    if read < least:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer of {least} or more.")
    return read


def count_or_none(name: str, value: Any, *, least: int) -> int | None:
    """Read an integer with a lower bound, or None for no limit."""
    return None if value is None else count(name, value, least=least)
