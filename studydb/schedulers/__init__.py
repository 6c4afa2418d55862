"""Judges of trials: pure, frozen, without SQL. A new one is a file here and a line in `BY_NAME`."""

from collections.abc import Mapping
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.near import did_you_mean
from studydb.domain.view import Scheduler
from studydb.schedulers.asha import ASHA
from studydb.schedulers.fifo import FIFO

BY_NAME: dict[str, type[ASHA] | type[FIFO]] = {"ASHA": ASHA, "FIFO": FIFO}

__all__ = ["ASHA", "BY_NAME", "FIFO", "make", "read"]


def make(name: str, *args: Any, **options: Any) -> Scheduler:
    """
    Make a scheduler by its name, as a command line or a row names it.

    Raises:
        InvalidSpec: No such scheduler, or one that takes other options.
    """
    kind = BY_NAME.get(name)
    if kind is None:
        raise InvalidSpec(f"There is no scheduler {name!r}.{did_you_mean(name, BY_NAME)}")
    try:
        return kind(*args, **options)
    except TypeError as error:
        reason = str(error).replace("__init__() ", "").replace("ASHA.", "")
        raise InvalidSpec(f"{name} {reason}.") from None


def read(spec: Mapping[str, Any]) -> Scheduler:
    """Read what `to_json` wrote."""
    options = dict(spec)
    return make(options.pop("name"), **options)
