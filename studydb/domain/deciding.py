"""Decisions of the user's own code: how long one may take, and why one is missing."""

DECISION_S = 1.0
"""How long a decision may take; then the process that decides is killed."""


class DecisionFailed(Exception):
    """
    The user's code has not decided.

    It raised, gave an answer of another type, took too long, died, or cannot be imported.

    Attributes:
        traceback: The traceback of the user's code; "" if there is none.
    """

    def __init__(self, why: str, *, traceback: str = "") -> None:
        super().__init__(why)
        self.traceback = traceback


class NotAsked(Exception):
    """The user's code was not asked: this process is stopping, or the trial is to end anyway."""
