"""The options of a worker's command line."""

from collections.abc import Callable
from dataclasses import dataclass, field

from studydb.domain.class_queues import RESERVE_AFTER_S
from studydb.domain.records import LEASE_S
from studydb.lease.retries import PATIENCE_S
from studydb.lease.room import SPILL_BYTES
from studydb.settings import DEFAULT_CACHE_BYTES

GRACE_S = 30.0

MOST_SLOTS = 1000
"""A worker with several thousand slots waits for its own connections to the database."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """
    The options of one worker.

    Attributes:
        storage: The database's URL, with its password.
        max_trials: After this many attempts the worker claims no more; None for no limit.
        wait: Whether to keep running when the study is done, for trials that may be enqueued.
        lease_s: How long a lease lasts without a renewal.
        patience_s: How long to continue while the database does not answer.
        workdir: The directory that children search first for the trainable, and in which they run
            unless `runs_in_directory`; None for the current directory.
        allow_imports: Packages, modules and import paths whose code may run without a signature.
        grace_s: How long a child that was asked to stop may save and end before it is killed.
        spill_bytes: How many bytes of results may wait on disk while the database does not answer.
        preempt_signal: A signal that a batch system sends before it ends its jobs; 0 for none.
        runs_in_directory: Whether each trial's own directory is the working directory of its code.
        warm_starts: Whether attempts may be forked from a process that has imported the trainable.
        cpus, memory_gb: What the worker offers to its trials; None for what the host has.
        gpus: "auto", "none", or a list of indices and UUIDs.
        resources: Amounts of other resources, for example "licence=2".
        tags: Words that studies may require.
        reserve_after_s: How long the first trial of the queue may wait for room beside the running
            trials, while smaller trials start. After this time the worker is reserved for the
            first trial. A trial that asks for more than the worker offers does not count as first.
        cache_bytes: How many bytes of remote checkpoints this host keeps; 0 for none.
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
    preempt_signal: int = 0
    runs_in_directory: bool = False
    warm_starts: bool = True
    cpus: float | None = None
    gpus: str = "auto"
    memory_gb: float | None = None
    resources: str = ""
    tags: tuple[str, ...] = ()
    reserve_after_s: float = RESERVE_AFTER_S
    cache_bytes: int = DEFAULT_CACHE_BYTES
