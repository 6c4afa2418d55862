"""Checks of numbers, flags and lists that users give; an error names the argument and the cure."""

import operator
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from studydb.domain.errors import InvalidSpec

LARGEST = 2**62
"""The largest integer that an argument may be; a database can store a sum of two smaller ones."""

LARGEST_32 = 2**31 - 1
"""The largest integer in a column of 32 bits."""


def integer(name: str, value: Any, *, most: int = LARGEST) -> int:
    """
    Read an integer; NumPy's integers are accepted.

    Raises:
        InvalidSpec: The value is not an integer, or is True or False; or it is above `most` or
            below -`most`.
    """
    whole = _whole(value)
    if whole is None:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer.")
    if abs(whole) > most:
        raise InvalidSpec(f"{name} is {whole}; it must be an integer from {-most} to {most}.")
    return whole


def flag(name: str, value: Any) -> bool:
    """
    Read True or False.

    Raises:
        InvalidSpec: The value is not a bool.
    """
    if not isinstance(value, bool):
        raise InvalidSpec(f"{name} is {value!r}; it must be True or False.")
    return value


def count(name: str, value: Any, *, least: int, most: int = LARGEST) -> int:
    """
    Read an integer with a lower bound.

    Raises:
        InvalidSpec: The value is not an integer, or is below `least` or above `most`.
    """
    whole = _whole(value)
    if whole is None or whole < least:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer of {least} or more.")
    if whole > most:
        raise InvalidSpec(f"{name} is {whole}; it must be an integer from {least} to {most}.")
    return whole


def count_or_none(name: str, value: Any, *, least: int, most: int = LARGEST) -> int | None:
    """Read an integer as `count` does, or None for no limit."""
    return None if value is None else count(name, value, least=least, most=most)


def elements(value: Any) -> Iterator[Any] | None:
    """
    Begin to read the elements of a value; None if the value has none.

    NumPy's array of a single number is an `Iterable` by its class, but cannot be iterated.
    """
    with suppress(TypeError):
        found: Iterator[Any] = iter(value)
        return found
    return None


def _whole(value: Any) -> int | None:
    with suppress(TypeError):
        return None if isinstance(value, bool) else operator.index(value)
    return None
