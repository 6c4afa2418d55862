"""What the arguments of a user's calls may be; errors name the argument and the cure."""

import operator
import os
from pathlib import Path
from typing import Any, TypeVar

from studydb.artifacts import INLINE, open_store
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Mode
from studydb.settings import expanded

Made = TypeVar("Made")


def integer(name: str, value: Any) -> int:
    """
    Read an integer, NumPy's too.

    Raises:
        InvalidSpec: It is none; a bool is none.
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
        InvalidSpec: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidSpec(f"{name} is {value!r}; it is True or False.")
    return value


def count(name: str, value: Any, *, least: int) -> int:
    """
    Read an integer with a lower bound.

    Raises:
        InvalidSpec: It is none, or too small.
    """
    try:
        read = integer(name, value)
    except InvalidSpec:
        read = least - 1
    if read < least:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer of {least} or more.")
    return read


def count_or_none(name: str, value: Any, *, least: int) -> int | None:
    """As `count`; None for no limit."""
    return None if value is None else count(name, value, least=least)


def seconds_or_none(name: str, value: Any) -> float | None:
    """
    Read a span of time; None for no limit.

    Raises:
        InvalidSpec: It is no number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSpec(f"{name} is {value!r}; it must be a number of seconds.")
    return float(value)


def directory(name: str, value: Any) -> Path:
    """
    Read the path of a directory.

    Raises:
        InvalidSpec: It is none.
    """
    path = expanded(value) if isinstance(value, str | os.PathLike) else None
    if path is None or not path.is_dir():
        raise InvalidSpec(f"{name} is {value!r}; it must be a directory.")
    return path


def mode(value: Any) -> Mode:
    """
    Read "min" or "max".

    Raises:
        InvalidSpec: It is neither.
    """
    try:
        return Mode(value)
    except ValueError:
        raise InvalidSpec(f"mode is {value!r}; it is 'min' or 'max'.") from None


def made(name: str, given: Any, default: Made, *, has: str, like: str) -> Made:
    """
    Check a scheduler or searcher.

    Args:
        given: The user's; None for the default.
        has: A method that tells one from whatever else was given.
        like: How to make one.

    Raises:
        InvalidSpec: It is a name, a class, or something else altogether.
    """
    if given is None:
        return default
    if isinstance(given, type) or not (hasattr(given, "to_json") and hasattr(given, has)):
        raise InvalidSpec(f"{name} is {given!r}; give an object, such as {like}.")
    found: Made = given
    return found


def store_url(checkpoints: Any) -> str | None:
    """
    The URL of a store of checkpoints; None for the database's default.

    Raises:
        UsageError: No such kind of store.
    """
    if checkpoints is None or checkpoints == INLINE:
        given: str | None = checkpoints
        return given
    try:
        path = os.fspath(checkpoints)
    except TypeError:
        path = checkpoints
    if not isinstance(path, str):
        raise InvalidSpec(
            f"checkpoints is {checkpoints!r}; give a directory that all workers see, as a path."
        )
    return open_store(path).url
