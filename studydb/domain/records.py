"""
Frozen records of database rows, and of the requests that write them. They use no SQL.

Records that are made for each trial or each result are Structs of msgspec, as in `metrics` and
`life/ending`. To make a Struct takes a tenth of the instructions that a frozen dataclass takes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from studydb.domain.life.custom_rule import RuleDecision
from studydb.domain.life.decisions import Decision, Verdict
from studydb.domain.life.states import Origin, Reason, State, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.resources import OF_STUDY, Resources
from studydb.domain.study_spec import StudySpec
from studydb.domain.text.display import shortened

if TYPE_CHECKING:
    from studydb.domain.custom_scheduler import Question
    from studydb.domain.deciding import Undecided

LONGEST_PARAMS = 100
"""The limit for the params in the `repr` of a trial, in characters."""

LEASE_S = 90.0
"""How many seconds a lease lasts without a renewal, by default."""

RENEWALS_PER_LEASE = 4.5
"""
A lease is renewed every 2/9 of its length, so that it expires only after four lost renewals in a
row. With fewer renewals, running attempts would be taken for lost (see Optuna #4234, #5470).
"""


def renewal_s(lease_s: float) -> float:
    """Return the seconds between two renewals of a lease."""
    return lease_s / RENEWALS_PER_LEASE


class Claimant(Struct, frozen=True):
    """
    A worker that claims or asks for one trial.

    Attributes:
        token: A random text, for one trial only. After a lost reply, send the same token until an
            answer comes; the answer is the trial that the lost reply contained.
        lease_s: Seconds until the lease expires, by the database's clock.
    """

    worker_id: int
    token: str
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Request:
    """
    A person's request.

    Attributes:
        token: A random text, for one request only: a duplicate request has the same token and
            changes nothing.
        actor: The person: user@host.
    """

    token: str
    actor: str


class QueuePosition(NamedTuple):
    """Where a PENDING trial stands in its study's queue: lower positions come first."""

    priority: int
    number: int


QUEUE_START = QueuePosition(-(2**31), -1)
"""The position before every trial."""


class Lease(Struct, frozen=True):
    """
    The right of one attempt to write to one trial.

    Attributes:
        attempt: The attempt's number, higher than those of the trial's earlier attempts.
        token: A random text. After the database was restored from a backup, two attempts may have
            the same number; their tokens differ.
        lease_s: How many seconds the lease lasts without a renewal, by the database's clock.
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
        flush_no: 1, 2, … within the attempt; a batch that is sent again has the same number.
        results: In ascending order of step; may be empty.
        after_step: The last step that this attempt has flushed. Before the first flush, this is the
            step of the restored checkpoint, or 0 without a checkpoint.
        before: The trial's summary before this batch; None if the attempt does not know it.
        ruled: What the study's custom stop rules say about the results; None if no rule ends the
            trial and no rule has failed.
        answers: The answers of the study's custom scheduler to questions about the results; None if
            the scheduler was not asked.
    """

    flush_no: int
    results: tuple[Result, ...] = ()
    after_step: int = 0
    before: Summary | None = None
    ruled: RuleDecision | None = None
    answers: "Mapping[Question, Decision | Undecided] | None" = None


class Proposal(Struct, frozen=True):
    """
    The trial that the searcher and the scheduler propose for one draw.

    Attributes:
        config: What the trial's first attempt receives; see `Claim`.
        space_version: The version of the space that the params were proposed for.
        is_unique: Whether the params must differ from those of each other trial with `is_unique`.
        request: The trial's own request for resources; None if the study's request applies.
    """

    params: Mapping[str, Any]
    config: Mapping[str, Any]
    origin: Origin
    bracket: int
    space_version: int
    is_unique: bool = False
    request: Resources | None = None

    @property
    def resource_class(self) -> str:
        """The name of the trial's resource class; trials of one class ask for the same amounts."""
        return OF_STUDY if self.request is None else str(self.request)


class CheckpointKind(StrEnum):
    """What the user's code passed to be saved: a dict or a directory."""

    DICT = "dict"
    """Stored as a pickle, which a worker loads only in its child processes."""
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    A saved state of a trial: where its bytes are, and their digest and signature.

    Attributes:
        uuid: The name of the bytes in the store.
        step: The last step that the bytes contain.
        kind: A `CheckpointKind`, or any other text in a damaged row, which has no valid signature.
        url: Where the bytes are; "inline:" if they are in the row's column `data`.
        digest: The SHA-256 of the bytes or of the directory's manifest, in hexadecimal.
        key_id, mac: The signature by the worker, or by the process of the person who uploaded the
            checkpoint. A checkpoint without a signature is not restored.
        id: The id of the row; None before the checkpoint is saved.
        trial_uuid: The UUID of the trial that saved the checkpoint; the signature covers this UUID.
            None if the row was read without the UUID.
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
    trial_uuid: str | None = None


class KeptCheckpoint(NamedTuple):
    """
    A checkpoint with the value of the study's metric at its step.

    Attributes:
        value: None if no result was reported at that step.
    """

    row: Checkpoint
    value: float | None


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    """
    An upload that no process will finish. Its row can be deleted, and its bytes unless `is_stored`.

    Attributes:
        id: The id of the upload's row.
        uuid: The UUID that the checkpoint would have.
        trial_uuid: None if a person has uploaded the bytes for a trial that was never enqueued.
        url: Where the bytes are, if they exist.
        is_stored: Whether a checkpoint's row names the bytes, so that they must stay. This happens
            if the request that records an upload arrives again after the checkpoint was saved.
    """

    id: int
    uuid: str
    trial_uuid: str | None
    attempt: int
    url: str
    is_stored: bool = False


class TrainableKind(StrEnum):
    """How a worker finds a trainable."""

    IMPORT = "import"
    """By importing the function or class that the trainable's name gives as `module:name`."""
    PICKLE = "pickle"
    """By loading the pickle in `source`."""
    BOUND = "bound"
    """
    By importing or unpickling a function or class, and loading the objects that are bound to its
    parameters; `source` describes both.
    """
    COMMAND = "command"
    """By starting the program whose command line is in `source`, as JSON."""


class TrainableRole(StrEnum):
    """
    What a study uses a piece of the user's code for.

    HOOK, SEARCHER, PREDICATE and EXPLORE are not used yet.
    """

    TRAINABLE = "trainable"
    HOOK = "hook"
    SCHEDULER = "scheduler"
    SEARCHER = "searcher"
    RULE = "rule"
    RESOURCES = "resources"
    PREDICATE = "predicate"
    EXPLORE = "explore"


class TrainableForm(StrEnum):
    """Whether a piece of the user's code is a function, a class or a command."""

    FUNCTION = "function"
    CLASS = "class"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Trainable:
    """
    A piece of the user's code that a study runs.

    Attributes:
        kind: A `TrainableKind`, or a text that only a newer studydb knows.
        workdir: The directory that workers search for the code, or for a command's files, after
            their own directory.
        python_version: Such as "3.11"; a pickle is loaded only by the same minor version of Python.
        signatures: The MACs by key id.
        role: A `TrainableRole`; the signatures cover it. The `source` of a stop rule or of a
            scheduler holds its options, as JSON.
    """

    uuid: str
    kind: str
    name: str
    workdir: str
    python_version: str
    source: bytes | None = None
    signatures: Mapping[str, str] = field(default_factory=dict)
    form: str = TrainableForm.FUNCTION
    role: str = TrainableRole.TRAINABLE

    @property
    def noun(self) -> str:
        """The word for this code in errors."""
        match self.role:
            case TrainableRole.RULE:
                return "stop rule"
            case TrainableRole.RESOURCES:
                return "resource function"
        return self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStudy(StudySpec):
    """
    A study that is to be created.

    Attributes:
        uuid: Chosen by the caller. The trainable's signatures cover it, and a duplicate request
            has the same UUID.
        seed: The study's seed, from which the points of its searcher and the seeds of its trials
            come.
        trainable: What workers run, signed for this study; None if own loops (`study.ask`) run the
            trials.
        created_by: A person: user@host.
        rule_code: The code of the study's custom stop rules, signed for this study.
        scheduler_code: The code of the study's custom scheduler, signed for this study; None if the
            scheduler is one of studydb's own.
        request_code: The code of the function that says what each trial needs, signed for this
            study; None if no function says it.
    """

    uuid: str
    name: str
    seed: int
    trainable: Trainable | None
    created_by: str
    rule_code: tuple[Trainable, ...] = ()
    scheduler_code: Trainable | None = None
    request_code: Trainable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(NewStudy):
    """
    A study's row, with its specs as objects.

    Attributes:
        former_checkpoints: The other stores that the study reads: those that it used before, and
            those of studies from whose checkpoints its trials began. An item None stands for the
            default store.
        status: The stored status; FINISHED is computed and never stored.
    """

    id: int
    space_version: int
    former_checkpoints: tuple[str | None, ...]
    status: Status
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TrialRow:
    """
    A trial's row. A field that `v_trial` shows has the same name there.

    Attributes:
        name: The name that a person gave to the trial when enqueuing it; None without a name.
        tags: In alphabetical order.
        config: What the trial's next attempt receives: its params, with the values that a person
            has changed, and the constants of the space. None if the trial was made by a version of
            studydb that stored no configs.
        changed: The values of `config` that a person has changed, by path.
        checkpoint_id: The checkpoint that the next attempt restores, which can be another trial's.
        source_checkpoint_id: The checkpoint of another trial from which this trial began, as a
            clone or as a trial that was enqueued with a checkpoint; else None.
        parent: The number of the trial of which this trial is a clone.
        running_s: Seconds that the attempts have run in total, as last stored; None if this was
            never stored, as in a study that limits no running time.
    """

    id: int
    uuid: str
    number: int
    name: str | None
    tags: tuple[str, ...]
    state: State
    reason: Reason | None
    params: Mapping[str, Any]
    config: Mapping[str, Any] | None
    changed: Mapping[str, Any]
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
    source_checkpoint_id: int | None
    parent: int | None
    invalidated_at: datetime | None
    worker_id: int | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    running_s: float | None

    @property
    def value(self) -> float | None:
        """The value of the study's metric in the last live result."""
        return self.summary.last_value

    @property
    def best_value(self) -> float | None:
        """The best value of the study's metric in the live results of all steps."""
        return self.summary.best_value

    def __repr__(self) -> str:
        best = "no value"
        if self.best_value is not None:
            best = f"best_value {self.best_value:.6g} at step {self.summary.best_step}"
        params = shortened(json.dumps(self.params, default=str), LONGEST_PARAMS)
        called = f" ({self.name!r})" if self.name else ""
        return (
            f"<trial {self.number}{called}: {self.reason or self.state}, {best}, params {params}>"
        )


class Claim(Struct, frozen=True):
    """
    A claimed trial with what its attempt needs.

    Attributes:
        params: The sampled parameters; they never change for this trial.
        config: What the attempt receives: `params`, with the values that a person has changed, and
            the constants of the study's space.
        seed: The seed of the user's random numbers, the same for every attempt of the trial.
        checkpoint: What to restore; None to start from the beginning.
        next_decision_step: See `Answer`.
        time_total_s: Seconds of training that earlier attempts have reported.
        queue_position: The trial's position in the queue when it was claimed.
        misfit: Why the params or the config do not fit the study's space; None if they fit. A trial
            with a misfit must not run.
        name, tags: See `TrialRow`.
        resource_class: The name of the trial's resource class; see `Proposal`.
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
    name: str | None = None
    tags: tuple[str, ...] = ()
    resource_class: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """
    The identity of a process among all processes of all hosts, running or ended.

    Attributes:
        boot_id: The kernel's id of this boot of the host.
        pid_namespace: The namespace of `pid`: two containers of a host can have equal pids.
        started: When the process started, in clock ticks since boot. It tells apart two processes
            that had the same pid one after the other.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int


DRAIN = "DRAIN"
"""The `request` that asks a worker to release its trials and exit."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's row. Each start of a worker process makes a new row."""

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


class Start(StrEnum):
    """How the process that runs an attempt was started."""

    WARM = "warm"
    """Forked from a process that had imported the trainable already."""
    FRESH = "fresh"
    """Forked from the fork server; the process imports the trainable itself."""
    REUSED = "reused"
    """The process of an earlier trial; the trainable is a class with a method `reset_config`."""


@dataclass(frozen=True, slots=True)
class LastError:
    """The newest cause of a failed or lost attempt among the newest 2,000 events of a study."""

    number: int
    attempt: int
    type: str
    message: str

    @property
    def summary(self) -> str:
        """The type without its module, and the first line of the message."""
        first = (self.message.strip().splitlines() or [""])[0]
        return f"{self.type.rpartition('.')[2]}: {first}" if first else self.type


@dataclass(frozen=True, slots=True)
class AttemptProcess:
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


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of one study's trials in each state."""

    pending: int = 0
    running: int = 0
    paused: int = 0
    terminated: int = 0
    error: int = 0

    @property
    def total(self) -> int:
        """The number of all trials of the study."""
        return self.pending + self.running + self.paused + self.terminated + self.error

    @property
    def text(self) -> str:
        """The numbers for people: "2 RUNNING, 5 TERMINATED", or "no trials"."""
        numbers = [(getattr(self, state.lower()), state) for state in State]
        return ", ".join(f"{number} {state}" for number, state in numbers if number) or "no trials"
