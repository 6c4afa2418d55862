"""What the slots of one worker share."""

from pathlib import Path

from msgspec import Struct, field

from studydb.artifacts import Stores
from studydb.artifacts.checkpoint_records import Saved
from studydb.db import Database
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.metrics import Result
from studydb.domain.records import Lease, Study
from studydb.lease.checkpoint_rows import Checkpoints
from studydb.lease.fitting import Fitting
from studydb.lease.heartbeat import Heartbeat
from studydb.lease.held import HeldAttempt
from studydb.lease.proposing import Proposer
from studydb.lease.room import Room
from studydb.lease.rule_judge import AskRule
from studydb.worker.attempt_output import OutputPump
from studydb.worker.current_code import CurrentCode
from studydb.worker.first_trials import FirstTrials
from studydb.worker.host_resources import HostResources
from studydb.worker.interruption import Interruption
from studydb.worker.notices import Notices
from studydb.worker.templates import Templates
from studydb.worker.worker_options import WorkerOptions


class Equipment(Struct, frozen=True):
    """What the slots of a worker share."""

    options: WorkerOptions
    database: Database
    study: Study
    worker_id: int
    code: CurrentCode
    templates: Templates
    pump: OutputPump
    checkpoints: Checkpoints
    heartbeat: Heartbeat
    interruption: Interruption
    notices: Notices
    room: Room
    host: HostResources
    fitting: Fitting
    """Tells which trials fit into the resources that the worker's running trials leave free."""
    ask_rule: AskRule | None = None
    """Asks the study's custom stop rules in a child; None if the study has none."""
    proposer: Proposer | None = None
    """Fits the model of the study's searcher; None if the searcher has no model."""
    warnings: dict[str, object] = field(default_factory=dict)
    """The kinds of warnings that this worker has printed, each once; see `_is_first`."""
    first_trials: FirstTrials = field(default_factory=FirstTrials)

    @property
    def grace_left_s(self) -> float:
        """How much of the grace is left; the grace begins when the worker begins to stop."""
        return self.interruption.left_s(self.options.grace_s)

    def log_dir(self, lease: Lease) -> Path:
        return self.database.locations.log_dir(self.study, lease)

    def trial_directory(self, lease: Lease) -> Path:
        return self.database.locations.trial_directory(self.study, lease).absolute()

    def record_checkpoint(self, held: HeldAttempt, saved: Saved, stores: Stores) -> None:
        """Record a checkpoint, and print why if the quota refuses it; see `Checkpoints.record`."""
        if refusal := self.checkpoints.record(held, saved, stores):
            self._say_not_stored(held, refusal)

    def record_checkpoint_error(self, held: HeldAttempt, error: str) -> None:
        """
        Record that a checkpoint could not be stored, and print the error; training continues.

        At most one such error of an attempt is recorded and printed per minute.
        """
        if held.record_store_error(error):
            self._say_not_stored(held, error)

    def _say_not_stored(self, held: HeldAttempt, error: str) -> None:
        number = held.lease.number
        self.options.say(f"trial {number}: a checkpoint could not be stored: {error}")

    def say_not_reused(self, reason: str) -> None:
        """Print why processes are not reused for further trials; once per worker."""
        if self._is_first("not reused"):
            self.options.say(f"a new process runs the next trial, because {reason}")

    def warn_of_rules(self, held: HeldAttempt, result: Result) -> None:
        """Warn once per worker if a result lacks the metric of a stop rule."""
        kind = EventKind.RULE_NOT_COMPARED
        warning = None if kind in self.warnings else held.rule_warning(result)
        if warning is not None and self._is_first(kind):
            self.options.say(f"warning: {warning}")
            held.record_event(kind, warning)

    def record_config_unread(self, held: HeldAttempt, name: str) -> None:
        """Warn once per worker that the trainable `name` never reads the parameters of a trial."""
        if not self._is_first(EventKind.CONFIG_NOT_READ):
            return
        warning = (
            f"{name} never reads its config, so the parameters have no "
            "effect. Read them from its first argument; sys.argv does not contain them."
        )
        self.options.say(f"warning: {warning}")
        held.record_event(EventKind.CONFIG_NOT_READ, warning)

    def _is_first(self, kind: str) -> bool:
        """Return True for the first call with a kind, by any slot; False for all later calls."""
        mine = object()
        return self.warnings.setdefault(kind, mine) is mine  # atomic
