"""Frozen records of the rows, and of requests that write them; they know no SQL."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from studydb.domain.life.decisions import Verdict
from studydb.domain.life.states import Origin, Reason, State, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.study_spec import StudySpec

LONGEST_PARAMS = 100
"""Characters of params in the `repr` of a trial."""

LEASE_S = 90.0
"""Seconds for which a claim or renewal holds, by default."""

RENEWALS_PER_LEASE = 4.5
"""A lease is renewed every 2/9 of it: false alarms need four lost beats (Optuna #4234, #5470)."""


def renewal_s(lease_s: float) -> float:
    """The time between two renewals of a lease."""
    return lease_s / RENEWALS_PER_LEASE


@dataclass(frozen=True, slots=True)
class Claimant:
    """
    A worker that claims or asks for one trial.

    Attributes:
        token: Random, for one trial only. After a lost reply, send the same token until an answer
            comes: it gets the trial that the lost reply named.
        lease_s: Seconds for which the claim holds, by the database's clock.
    """

    worker_id: int
    token: str
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Request:
    """
    One request of a person.

    Attributes:
        token: Random, for one request only; sent again after a lost reply, the request counts once.
        actor: Who makes it: user@host.
    """

    token: str
    actor: str


class QueuePosition(NamedTuple):
    """Where a PENDING trial stands in its study's queue: lower comes first."""

    priority: int
    number: int


QUEUE_START = QueuePosition(-(2**31), -1)
"""Before every trial."""


@dataclass(frozen=True, slots=True)
class Lease:
    """
    The right of one attempt to write to one trial.

    Attributes:
        attempt: The fencing number; only rises.
        token: Random, unique: a restored database can hand out an attempt number again.
        lease_s: Seconds for which a claim or renewal holds, by the database's clock.
        worker_id: Who holds it.
    """

    study_id: int
    trial_id: int
    number: int
    bracket: int
    attempt: int
    token: str
    lease_s: float = LEASE_S
    worker_id: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """
    Results that are flushed together.

    Attributes:
        flush_no: 1, 2, … within the attempt; a resend carries the same number.
        results: In ascending order of step; may be empty.
        after_step: The step that this attempt flushed last, or restored from; 0 for none.
        before: The trial's summary before this batch; None if this attempt does not know it.
    """

    flush_no: int
    results: tuple[Result, ...] = ()
    after_step: int = 0
    before: Summary | None = None


class CheckpointKind(StrEnum):
    """What the user's code gave to be saved."""

    DICT = "dict"
    """Stored as a pickle, which only the child opens."""
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    A saved state of a trial: where its bytes are, and their digest and signature.

    Attributes:
        uuid: Names the object in its store.
        step: The last step that the bytes contain.
        kind: A `CheckpointKind`; in a damaged row any text, which no signature covers.
        url: Where the bytes are; "inline:" for the row's own `data`.
        digest: SHA-256 in hexadecimal, of the bytes or of the directory's manifest.
        key_id, mac: The supervisor's signature, whatever the kind; nothing unsigned is restored.
        id: The row's; None before it is saved.
    """

    uuid: str
    trial_id: int
    attempt: int
    step: int
    kind: str
    url: str
    digest: str
    size_bytes: int
    key_id: str | None = None
    mac: str | None = None
    id: int | None = None


class TrainableKind(StrEnum):
    """How a worker finds a trainable."""

    IMPORT = "import"
    """By its name, `module:function`."""
    PICKLE = "pickle"
    """`source` holds its bytes."""


@dataclass(frozen=True, slots=True)
class Trainable:
    """
    What a study runs.

    Attributes:
        kind: A `TrainableKind`, or one that only a newer studydb knows.
        workdir: The working directory in which the study was created.
        python_version: "3.11": a pickle is opened by the same minor version only.
        signatures: MAC by key id.
    """

    uuid: str
    kind: str
    name: str
    workdir: str
    python_version: str
    source: bytes | None = None
    signatures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStudy(StudySpec):
    """
    A study that is to be created.

    Attributes:
        uuid: Made by the caller: signatures of the trainable name it, and a duplicate request is
            known by it.
        seed: What the searcher's random numbers begin from.
        trainable: What workers run, signed for this study; None if own loops run its trials.
        created_by: user@host.
    """

    uuid: str
    name: str
    seed: int
    trainable: Trainable | None
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(NewStudy):
    """
    A study's row with its specs read.

    Attributes:
        former_checkpoints: The stores that it had before; what they hold stays readable.
        status: As stored, so never FINISHED.
    """

    id: int
    space_version: int
    former_checkpoints: tuple[str | None, ...]
    status: Status
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial's row; the names are those of `v_trial`."""

    id: int
    uuid: str
    number: int
    state: State
    reason: Reason | None
    params: Mapping[str, Any]
    origin: Origin
    bracket: int
    attempt: int
    failures: int
    losses: int
    summary: Summary
    verdict: Verdict | None
    request: str | None
    paused_by: str | None
    checkpoint_id: int | None
    worker_id: int | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def value(self) -> float | None:
        """The last live value of the study's metric."""
        return self.summary.last_value

    @property
    def best_value(self) -> float | None:
        """The best live value over all steps."""
        return self.summary.best_value

    def __repr__(self) -> str:
        """Number, state, best value and params, on one short line."""
        best = "no value"
        if self.best_value is not None:
            best = f"best_value {self.best_value:.6g} at step {self.summary.best_step}"
        params = json.dumps(self.params, default=str)
        if len(params) > LONGEST_PARAMS:
            params = f"{params[:LONGEST_PARAMS]}…"
        return f"<trial {self.number}: {self.reason or self.state}, {best}, params {params}>"


@dataclass(frozen=True, slots=True)
class Claim:
    """
    A claimed trial with what its attempt needs.

    Attributes:
        params: What was sampled; immutable.
        config: `params` with the space's constants.
        seed: For the user's random numbers: the same for every attempt of the trial.
        checkpoint: What to restore, None to start from scratch.
        next_decision_step: See `Answer`.
        time_total_s: Seconds of training that earlier attempts have reported.
        queue_position: Where it stood in the queue.
        misfit: Why its params are outside the study's space; it must not run then.
    """

    lease: Lease
    uuid: str
    params: Mapping[str, Any]
    config: Mapping[str, Any]
    seed: int
    checkpoint: Checkpoint | None
    next_decision_step: int | None
    time_total_s: float = 0.0
    queue_position: QueuePosition = QUEUE_START
    misfit: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """
    A process, identified among all processes on all hosts, past ones included.

    Attributes:
        boot_id: Changes at each boot of the host.
        pid_namespace: Containers share a boot id but not their pids.
        started: The process's start in clock ticks since boot: pids are reused.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int


DRAIN = "DRAIN"
"""The request to a worker to give back its trials and to exit."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's row: one per process start, never reused."""

    id: int
    study_id: int
    uuid: str
    process: Process
    slots: int
    lease_s: float
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed, for its row and for `show`."""

    type: str
    message: str
    traceback: str = ""


class Start(StrEnum):
    """How the process of an attempt was started."""

    WARM = "warm"
    """Forked from a process that had imported the trainable."""
    FRESH = "fresh"
    """It imports the trainable itself."""


@dataclass(frozen=True, slots=True)
class LastError:
    """The newest failure or loss of a study that left a cause."""

    number: int
    attempt: int
    type: str
    message: str

    @property
    def words(self) -> str:
        """The type, without its module, and the message's first line."""
        first = (self.message.strip().splitlines() or [""])[0]
        return f"{self.type.rpartition('.')[2]}: {first}" if first else self.type


@dataclass(frozen=True, slots=True)
class AttemptProcess:
    """
    What a worker knows of an attempt's process, as the attempt's row keeps it.

    Attributes:
        log_dir: The folder of the output, on the worker's host.
        log_tail: The end of the output, for readers on other hosts.
        start: None if no process was started.
        start_s: Seconds from the claim to the first line of the user's function; None if it was
            never called.
    """

    log_dir: str
    log_tail: str
    start: Start | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Trials of one study by state."""

    pending: int = 0
    running: int = 0
    paused: int = 0
    terminated: int = 0
    error: int = 0

    @property
    def total(self) -> int:
        """All trials of the study."""
        return self.pending + self.running + self.paused + self.terminated + self.error
