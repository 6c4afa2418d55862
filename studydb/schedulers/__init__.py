"""Judges of trials: pure, frozen, without SQL. A new one is a file here and a line in `BY_NAME`."""

from collections.abc import Callable, Mapping
from typing import Any

from studydb.domain.specs.grammar import Call, build, rebuild
from studydb.domain.view import Scheduler
from studydb.schedulers.asha import ASHA
from studydb.schedulers.fifo import FIFO

BY_NAME: dict[str, Callable[..., Scheduler]] = {"ASHA": ASHA, "FIFO": FIFO}

__all__ = ["ASHA", "BY_NAME", "FIFO", "from_call", "read"]


def from_call(call: Call) -> Scheduler:
    """
    Make what a command line names: parse_call("ASHA(max_t=27)").

    Raises:
        InvalidSpec: No such scheduler, or one that takes other arguments.
    """
    return build(call, BY_NAME, what="scheduler")


def read(spec: Mapping[str, Any]) -> Scheduler:
    """
    Read what `to_json` wrote.

    Raises:
        InvalidSpec: No such scheduler, or one that takes other arguments.
    """
    return rebuild(spec, BY_NAME, what="scheduler")
