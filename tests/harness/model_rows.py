"""The rows of a model's study: workers, checkpoints, uploads, attempts and trials."""

from dataclasses import dataclass, field

from studydb.domain.errors import NotAllowed
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Reason, State

ENDED = (State.TERMINATED, State.ERROR)
FINAL_DECIDERS = (DecidedBy.SCHEDULER, DecidedBy.RULE, DecidedBy.LIMIT, DecidedBy.TRIAL)


@dataclass
class ModelWorker:
    """A process that holds leases."""

    uuid: str
    pid: int
    lease_s: float
    seen_at: float
    ended_at: float | None = None
    request: str | None = None
    reserved_for: int | None = None

    def drain(self) -> None:
        if self.ended_at is not None:
            raise NotAllowed
        self.request = "DRAIN"


@dataclass
class ModelCheckpoint:
    """A checkpoint's row."""

    uuid: str
    number: int
    attempt: int
    step: int
    size_bytes: int = 3
    url: str = "inline:"
    removed: bool = False
    corrupt: bool = False
    data: bool = True
    pins: int = 0
    is_wanted = False  # whether a person has pinned it; not a field, so that `asdict` omits it


@dataclass
class ModelUpload:
    """The row of an upload that has begun; what a person uploads belongs to no trial yet."""

    uuid: str
    number: int | None
    attempt: int
    started_at: float = 0.0


@dataclass
class ModelAttempt:
    """Attempt `no` of trial `number`; `stored` holds the attempt's flushed values by step."""

    number: int
    no: int
    token: str
    worker: ModelWorker
    restored: ModelCheckpoint | None
    start_step: int
    started_at: float
    flush_no: int = 0
    stored: dict[int, float] = field(default_factory=dict)
    ended_at: float | None = None
    reason: Reason | None = None
    error_type: str | None = None
    verdict: Verdict | None = None


@dataclass
class ModelTrial:
    """A trial's row; `live` holds the values that no later attempt has superseded, by step."""

    number: int
    origin: str
    created_at: float
    draw: int | None = None
    bracket: int = 0
    priority: int = 0
    state: State = State.PENDING
    reason: Reason | None = None
    ready_at: float | None = None
    request: Action | None = None
    verdict: Verdict | None = None
    paused_by: str | None = None
    failures: int = 0
    losses: int = 0
    attempts: list[ModelAttempt] = field(default_factory=list)
    flush_no: int = 0
    lease_s: float | None = None
    expires_at: float | None = None
    suspect_at: float | None = None
    checkpoint: ModelCheckpoint | None = None
    checkpoint_step: int = 0
    live: dict[int, float] = field(default_factory=dict)
    time_total_s: float | None = None
    running_s: float | None = None
    running_until: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    changed: dict[str, float] | None = None
    invalidated_at: float | None = None
    parent: int | None = None
    source: ModelCheckpoint | None = None
    pinned: ModelCheckpoint | None = None
    asks: str = ""
    asks_next: str | None = None

    @property
    def refuses_results(self) -> bool:
        """Whether further results are dropped."""
        return self.verdict is not None and self.verdict.by in FINAL_DECIDERS

    @property
    def held(self) -> ModelAttempt | None:
        """The attempt that may write to this trial."""
        return self.attempts[-1] if self.state is State.RUNNING else None
