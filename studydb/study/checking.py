"""Check and convert arguments that users give, such as schedulers, searchers, seconds and paths."""

import math
import os
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from studydb.artifacts import INLINE, open_store
from studydb.artifacts.directory import DirectoryStore
from studydb.domain.canonical import is_number, plain_text
from studydb.domain.custom_scheduler import CustomScheduler
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.selections import Selection
from studydb.domain.metrics import is_double
from studydb.domain.scheduling import Scheduler
from studydb.domain.searching import Searcher
from studydb.domain.user_code import IS_PATH
from studydb.schedulers import FIFO, UserScheduler
from studydb.searchers import RandomSearch
from studydb.settings import expanded

Made = TypeVar("Made")


def scheduler(given: Scheduler | CustomScheduler | str | None) -> Scheduler:
    """Check the argument `scheduler` without importing the user's code; None stands for `FIFO`."""
    if isinstance(given, str) and IS_PATH.fullmatch(given):
        return UserScheduler.from_text(given)
    if isinstance(given, CustomScheduler) or _is_custom_class(given):
        return UserScheduler.of(given)
    found: Any = given
    made: Scheduler = _made("scheduler", found, FIFO(), has="judge", like="ASHA(max_t=27)")
    return made


def _is_custom_class(given: object) -> TypeGuard[type[CustomScheduler]]:
    return isinstance(given, type) and issubclass(given, CustomScheduler)


def searcher(given: Searcher | None) -> Searcher:
    """Check the argument `searcher`; None stands for `RandomSearch`."""
    return _made("searcher", given, RandomSearch(), has="propose", like="RandomSearch(seed=0)")


def _made(name: str, given: Made | None, default: Made, *, has: str, like: str) -> Made:
    """
    Check a scheduler or searcher; None stands for the default.

    Args:
        has: A method that the object must have.
        like: An example for the message.
    """
    if given is None:
        return default
    if isinstance(given, type) or not (hasattr(given, "to_json") and hasattr(given, has)):
        raise InvalidSpec(f"{name} is {given!r}; give an object, such as studydb.{like}.")
    return given


def seconds_or_none(name: str, value: Any) -> float | None:
    """
    Read a number of seconds; None for no limit.

    Raises:
        InvalidSpec: The value is not a number.
    """
    if value is None:
        return None
    if not is_double(value) or math.isnan(value):
        raise InvalidSpec(f"{name} is {value!r}; it must be a number of seconds.")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """
    Read a number of seconds.

    Raises:
        InvalidSpec: The value is not a finite number of 0 or more.
    """
    if not is_number(value) or not 0 <= value < math.inf:
        raise InvalidSpec(f"{name} is {value!r}; it must be a finite number of seconds, 0 or more.")
    return float(value)


def selection(value: Any) -> Selection:
    """
    Read the argument `select`.

    Raises:
        InvalidSpec: There is no such selection.
    """
    if not isinstance(value, str) or value not in set(Selection):
        known = ", ".join(repr(str(one)) for one in Selection)
        raise InvalidSpec(f"select is {value!r}; it must be one of {known}.")
    return Selection(value)


def directory(name: str, value: Any) -> Path:
    """
    Read the path of a directory.

    Raises:
        InvalidSpec: There is no such directory, or this user cannot look for it.
        UsageError: The path begins with "~", and that home directory is unknown.
    """
    path = expanded(value) if isinstance(value, str | os.PathLike) else None
    try:
        if path is not None and path.is_dir():
            return path
    except OSError as cause:
        raise InvalidSpec(
            f"{name} is {value!r}; it must be a directory that can be read: {cause.strerror}."
        ) from cause
    raise InvalidSpec(f"{name} is {value!r}; it must be a directory.")


def working_directory(workdir: Any) -> Path:
    """
    Read the argument `workdir`; None stands for the current directory.

    Raises:
        InvalidSpec, UsageError: See `directory`.
    """
    return directory("workdir", Path.cwd() if workdir is None else workdir)


def store_url(checkpoints: Any) -> str | None:
    """
    Read a path or URL as the URL of a checkpoint store; None stands for the database's default.

    Raises:
        UsageError: `plain_text` or `open_store` refuses the value; or the value is neither a path
            nor a URL; or it is the path of a file, or a path below a file.
    """
    if checkpoints is None:
        return None
    path = os.fspath(checkpoints) if isinstance(checkpoints, os.PathLike) else checkpoints
    if not isinstance(path, str):
        raise InvalidSpec(
            f"checkpoints is {checkpoints!r}; give a directory that all workers see, as a path, or "
            "the URL of a store."
        )
    if path == INLINE:
        return INLINE
    store = open_store(plain_text(path, subject="The argument checkpoints"))
    if isinstance(store, DirectoryStore):
        # Unlike `pathlib`, `os.path` raises no error if this user may not read a folder above.
        exist = (one for one in (store.root, *store.root.parents) if os.path.exists(one))  # noqa: PTH110
        if not os.path.isdir(found := next(exist)):  # noqa: PTH112
            raise InvalidSpec(
                f"Checkpoints cannot go to {path}, because {found} is a file; give a directory."
            )
    return store.url
