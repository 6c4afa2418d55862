"""What a worker is told on its command line."""

from collections.abc import Callable
from dataclasses import dataclass, field

from studydb.domain.records import LEASE_S
from studydb.lease.retries import PATIENCE_S
from studydb.lease.room import SPILL_BYTES

GRACE_S = 30.0
"""How long a child that was told to stop may take to save and leave, by default."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """
    How a worker is to work.

    Attributes:
        storage: The URL, with its password.
        slots: Trials at a time.
        max_trials: Leave after so many attempts; None for no limit.
        wait: Whether to stay when the study is done, for what may be enqueued.
        lease_s: How long a claim holds without a renewal.
        patience_s: How long to go on without the database.
        workdir: Where the trainable is looked for first, and where children run.
        grace_s: How long a child that is told to stop or to make room may take before it is killed.
        allow_imports: Prefixes of import paths that may run although no key of ours signed them.
        spill_bytes: The most that waits on disk while the database is away.
        say: Takes one line for people.
        start: "auto" to fork attempts from a process that has imported the trainable where that
            is safe; "fresh" to have each attempt import it.
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
    start: str = "auto"
