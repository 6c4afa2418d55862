"""The record of the process that ran an attempt."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class Start(StrEnum):
    """How the process that runs an attempt was started."""

    WARM = "warm"
    """Forked from a process that had imported the trainable already."""
    FRESH = "fresh"
    """Forked from the fork server; the process imports the trainable itself."""
    REUSED = "reused"
    """The process of an earlier trial; the trainable is a class with a method `reset_config`."""


class AttemptProcess(Struct, frozen=True):
    """
    What an attempt's row stores about the process that ran the attempt.

    Attributes:
        log_dir: The folder of the process's output, on the worker's host.
        log_tail: The end of the output, for readers on other hosts.
        start: None if no process was started.
        start_s: Seconds from the claim to the first line of the user's function; None if the
            function was not called.
        code: What the process ran; see `studydb.trainables.provenance`.
    """

    log_dir: str
    log_tail: str
    start: Start | None = None
    start_s: float | None = None
    code: Mapping[str, str] | None = None
