"""One call of an operation, which can be made on a database and on a model of the study."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from harness.model import Model
from studydb.db import Database


@dataclass(frozen=True)
class StudyAction:
    """
    One call of one operation.

    Attributes:
        act: Calls the operation on a database; returns its answer.
        expect: Calls the operation on a model; returns the answer that `act` should give.
        turns: `expect` as a generator that yields between the operation's transactions, and that
            skips locked trials (see `Model.recover_in_turns`); None if the model makes the call in
            one step.
        token: The token of a claim or an ask; None for other operations.
    """

    name: str
    act: Callable[[Database], Any]
    expect: Callable[[Model], Any]
    turns: Callable[..., Generator[None, None, Any]] | None = None
    token: str | None = None
