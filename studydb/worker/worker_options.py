"""The options of a worker's command line."""

from collections.abc import Callable
from dataclasses import dataclass, field

from studydb.domain.records import LEASE_S
from studydb.lease.retries import PATIENCE_S
from studydb.lease.room import SPILL_BYTES

GRACE_S = 30.0
"""Default time for a child that was asked to stop, to save and end."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """
    The options of one worker.

    Attributes:
        storage: The URL, with its password.
        say: Prints one line.
        slots: The number of trials that run at a time.
        max_trials: The worker ends after so many attempts; None for no limit.
        wait: Whether to stay when the study is done, for trials that may be enqueued.
        lease_s: How long a claim holds without a renewal.
        patience_s: How long to go on without the database.
        workdir: Where the trainable is looked for first, and where children run.
        allow_imports: Prefixes of import paths that may run without a signature.
        grace_s: Time for a child that was asked to stop, before it is killed.
        spill_bytes: The most that waits on disk while the database is away.
        warm_starts: Whether attempts may be forked from a process that has imported the trainable;
            False to have each attempt import it.
    """

    storage: str = field(repr=False)
    study: str
    say: Callable[[str], None]
    slots: int = 1
    max_trials: int | None = None
    wait: bool = False
    lease_s: float = LEASE_S
    patience_s: float = PATIENCE_S
    workdir: str | None = None
    allow_imports: tuple[str, ...] = ()
    grace_s: float = GRACE_S
    spill_bytes: int = SPILL_BYTES
    warm_starts: bool = True
