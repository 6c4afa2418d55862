"""The groups of ended trials that a person can choose without naming each trial."""

from enum import StrEnum


class Selection(StrEnum):
    """
    A choice among a study's ended trials.

    Trials of which a clone exists, and invalidated trials, are in no selection.
    """

    ERRORED = "errored"
    """Trials in the state ERROR."""
    CANCELLED = "cancelled"
    """Trials that a person has stopped, alone or with their study."""
    FINISHED = "finished"
    """Trials that are TERMINATED, but not because a person has stopped them."""
    ALL = "all"
    """All ended trials."""
