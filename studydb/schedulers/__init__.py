"""
Schedulers, which judge trials: frozen dataclasses without SQL.

To add a scheduler, write a file here and list its class in `BY_NAME`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from studydb.domain.scheduling import Scheduler
from studydb.domain.specs.building import build, rebuild
from studydb.domain.specs.grammar import Call
from studydb.schedulers.asha import ASHA
from studydb.schedulers.fifo import FIFO
from studydb.schedulers.hyperband import HyperBand
from studydb.schedulers.median_stopping import MedianStopping
from studydb.schedulers.one_epoch import OneEpoch
from studydb.schedulers.user_scheduler import UserScheduler

BY_NAME: dict[str, Callable[..., Scheduler]] = {
    "ASHA": ASHA,
    "FIFO": FIFO,
    "HyperBand": HyperBand,
    "MedianStopping": MedianStopping,
    "OneEpoch": OneEpoch,
}

__all__ = [
    "ASHA",
    "BY_NAME",
    "FIFO",
    "HyperBand",
    "MedianStopping",
    "OneEpoch",
    "UserScheduler",
    "from_call",
    "read",
]


def from_call(call: Call) -> Scheduler:
    """Make the scheduler that a person typed; see `build`."""
    return build(call, BY_NAME, noun="scheduler")


def read(spec: Mapping[str, Any]) -> Scheduler:
    """Make the scheduler that a study's row holds; a name with ":" is a path to the user's code."""
    if ":" in str(spec.get("name", "")):
        return UserScheduler.from_json(spec)
    return rebuild(spec, BY_NAME, noun="scheduler")
