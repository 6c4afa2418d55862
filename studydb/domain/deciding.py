"""Decisions of the user's own code: how long a decision may take, and why one is missing."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from studydb.domain.custom_scheduler import Question

DECISION_S = 1.0
"""How many seconds a decision may take; a process that takes longer to decide is killed."""


class DecisionFailed(Exception):
    """
    The user's code has not decided.

    The code raised, gave an answer that is not allowed, took too long, died, or cannot be imported;
    or its process cannot be started.

    Attributes:
        traceback: The traceback of the user's code; "" if there is none.
    """

    def __init__(self, why: str, *, traceback: str = "") -> None:
        super().__init__(why)
        self.traceback = traceback


class NotAsked(Exception):
    """The user's code was not asked: this process is stopping, or the trial is to end anyway."""


class Undecided(Struct, frozen=True):
    """
    Why a scheduler in the user's code has not decided.

    Attributes:
        why: Names the scheduler and the cause.
        traceback: See `DecisionFailed`.
    """

    why: str
    traceback: str = ""


class DecisionNeeded(Exception):
    """
    The user's code must be asked before the operation can go on; nothing was written.

    Ask the code outside of the transaction, and call the operation again with the answer.

    Attributes:
        question: What the code is asked.
        step: The step of the result that is judged; 0 if none is judged.
    """

    def __init__(self, question: "Question", *, step: int = 0) -> None:
        super().__init__(f"A decision of the user's code is needed: {question.method}.")
        self.question, self.step = question, step
