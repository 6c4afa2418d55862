"""
Frozen records of database rows, and of the requests that write them. They use no SQL.

Most are Structs of msgspec; ARCHITECTURE.md says which are not. Defining a Struct takes 2 % of the
time of defining a frozen dataclass, and making an instance takes 10 %.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from studydb.domain.checkpoint import Checkpoint
from studydb.domain.failures import short_type
from studydb.domain.life.custom_rule import RuleDecision
from studydb.domain.life.decisions import Decision, Verdict
from studydb.domain.life.states import Origin, Reason, State, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.resources import OF_STUDY, Resources
from studydb.domain.study_spec import StudySpec
from studydb.domain.text.display import shortened
from studydb.domain.trainable import Trainable

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


class Request(Struct, frozen=True):
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
        token: A random text. If the database is restored from a backup, two attempts may get the
            same number; their tokens differ.
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


class Batch(Struct, frozen=True):
    """
    Results that are flushed together.

    Attributes:
        flush_no: 1, 2, … within the attempt; a batch that is sent again has the same number.
        results: In ascending order of step; may be empty.
        after_step: The last step that this attempt flushed before this batch. If there is none,
            this is the step of the restored checkpoint, or 0 without a checkpoint.
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
        is_unique: Whether the params must differ from the params of all other trials for which
            `is_unique` is True.
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
        former_checkpoints: The stores that `checkpoints` named before, the newest first; None
            stands for the default store. A store that `checkpoints` has named several times is
            listed at its first and at its last place.
        source_checkpoints: The present and former stores of the studies from whose checkpoints
            trials of this study began, by the study's UUID, ordered as above.
        status: The stored status; FINISHED is computed and never stored.
        is_being_deleted: Whether a deletion has begun; it may have failed.
        is_half_deleted: Whether a deletion has removed the study's files, and perhaps trials. Then
            the study can only be deleted.
    """

    id: int
    space_version: int
    former_checkpoints: tuple[str | None, ...]
    source_checkpoints: Mapping[str, tuple[str | None, ...]]
    status: Status
    created_at: datetime
    is_being_deleted: bool = False
    is_half_deleted: bool = False


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
        checkpoint_id: The checkpoint that the next attempt restores; another trial may have saved
            this checkpoint.
        source_checkpoint_id: The checkpoint of another trial from which this trial begins; None if
            the trial begins from scratch or from a checkpoint that a person has uploaded for it.
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
        params: The proposed or enqueued parameters; they never change for this trial.
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


class Process(Struct, frozen=True):
    """
    The identity of a process among all processes of all hosts, running or ended.

    Attributes:
        boot_id: The kernel's id of this boot of the host.
        pid_namespace: The namespace of `pid`: two containers of a host can have equal pids.
        started: When the process started, as `processes.start_of` returns it; 0 if unknown. Two
            processes that had the same pid one after the other differ in this number.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int


DRAIN = "DRAIN"
"""The `request` that asks a worker to release its trials and exit."""


class Worker(Struct, frozen=True):
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


class LastError(Struct, frozen=True):
    """
    The newest error of a study's attempts that failed, were lost or were given back.

    See `store.events.last_error` and `store.overview.given_back`.
    """

    number: int
    attempt: int
    type: str
    message: str

    @property
    def summary(self) -> str:
        """The type without its module, and the first line of the message."""
        first = (self.message.strip().splitlines() or [""])[0]
        return f"{short_type(self.type)}: {first}" if first else short_type(self.type)


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
