"""Simulated workers, which replay recorded curves through the operations of real workers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from studydb.analysis.recorded_curves import Curve
from studydb.db import Database
from studydb.domain.checkpoint import Checkpoint, CheckpointKind
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.domain.records import LEASE_S, Claim, Study
from studydb.lease.acquire import Acquirer
from studydb.lease.held import HeldAttempt
from studydb.lease.proposing import Proposer
from studydb.operations.register import register
from studydb.operations.renew import renew
from studydb.processes import this_process
from studydb.version import __version__

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """The clock of a simulation and of its database; the time never moves back."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._now = START

    def move_to(self, time_s: float) -> None:
        if time_s > self.now_s:
            self.now_s, self._now = time_s, START + timedelta(seconds=time_s)

    def __call__(self) -> datetime:
        """Return the time for `Database.clock`."""
        return self._now

    def seconds(self) -> float:
        """Return the seconds since the simulation began, in place of `time.monotonic`."""
        return self.now_s


@dataclass(slots=True)
class Training:
    """
    What the simulation knows of one trial.

    Attributes:
        curve: The index of the trial's curve.
        n_steps: How many steps the trial has trained; a step counts each time that it is trained.
        furthest: How many steps of the curve the trial has trained at least once.
    """

    curve: int
    began_s: float
    ended_s: float = 0.0
    n_steps: int = 0
    furthest: int = 0


@dataclass(slots=True)
class Task:
    """
    What the workers of a simulation share.

    Attributes:
        choose: Returns the index of the curve of a new trial.
        saves: Whether trials save checkpoints when they pause.
        flushes: Whether workers flush each report, as real workers do if a step takes a second or
            more. If not, a report waits for the next checkpoint or the attempt's end, unless
            `HeldAttempt.add` asks for a flush earlier (for a judged report, for example).
        saves_often: With `saves`, whether trials save a checkpoint after each step.
        completed: Called with the number and the last value of a trial that is fully trained.
        n_steps: How many steps all trials have trained.
        n_again: How many of the `n_steps` steps were trained before by the same trial.
    """

    database: Database
    study: Study
    curves: tuple[Curve, ...]
    clock: Clock
    choose: Callable[[Claim], int]
    saves: bool
    flushes: bool
    saves_often: bool
    completed: Callable[[int, float], None]
    trainings: dict[int, Training] = field(default_factory=dict)
    n_steps: int = 0
    n_again: int = 0


class SimulatedWorker:
    """
    A worker that holds at most one trial.

    Attributes:
        held: The worker's attempt; None if the worker is idle.
    """

    def __init__(self, task: Task) -> None:
        """Register as a worker of the task's study."""
        self._task = task
        self._id = register(
            task.database,
            task.study,
            uuid=uuid4().hex,
            process=this_process(),
            slots=1,
            lease_s=LEASE_S,
            version=__version__,
        )
        self._proposer = Proposer.of(task.database, task.study, worker_id=self._id)
        self._acquirer = self._new_acquirer()
        self.held: HeldAttempt | None = None
        self._position = 0

    def _new_acquirer(self) -> Acquirer:
        return Acquirer(
            self._task.database,
            self._task.study,
            worker_id=self._id,
            lease_s=LEASE_S,
            proposer=self._proposer,
            clock_s=self._task.clock.seconds,
        )

    @property
    def curve(self) -> Curve:
        """The curve of the worker's trial."""
        assert self.held is not None
        return self._task.curves[self._task.trainings[self.held.lease.number].curve]

    def next_step(self) -> int:
        """Return the `training_iteration` that the worker trains next."""
        return self.curve.steps[self._position]

    def acquire(self) -> bool:
        """Claim, promote or make a trial; return False if there is none for this worker."""
        claim = self._acquirer.acquire()
        if claim is None:
            # A new acquirer searches at once. The old acquirer might read the progress again only
            # after an interval of the real clock.
            self._acquirer = self._new_acquirer()
            return False
        task, number = self._task, claim.lease.number
        self.held = HeldAttempt(task.database, task.study, claim)
        if number not in task.trainings:
            task.trainings[number] = Training(task.choose(claim), task.clock.now_s)
        restored = claim.checkpoint.step if claim.checkpoint is not None else 0
        self._position = sum(step <= restored for step in self.curve.steps)
        return True

    def train(self) -> bool:
        """
        End a step: report its value, and carry out the verdict, as an own loop does.

        Returns:
            Whether anything was written to the database.
        """
        held, curve, position = self.held, self.curve, self._position
        assert held is not None
        self._count()
        self._position = position + 1
        step, is_last = curve.steps[position], position + 1 == len(curve.values)
        due = held.add(Result(step, curve.values[position], {}, is_last=is_last))
        if due or self._task.flushes:
            held.flush()
        verdict = held.verdict
        pauses = verdict is not None and verdict.action is Action.PAUSE
        if self._task.saves and (pauses or self._task.saves_often):
            held.save(checkpoint_without_bytes(held, step=step), b"")
        if verdict is not None or is_last:
            self.end(Reason.PREEMPTED if verdict is not None else Reason.COMPLETED)
            return True
        return due or self._task.flushes

    def _count(self) -> None:
        assert self.held is not None
        training = self._task.trainings[self.held.lease.number]
        training.n_steps += 1
        self._task.n_steps += 1
        if self._position < training.furthest:
            self._task.n_again += 1
        training.furthest = max(training.furthest, self._position + 1)

    def end(self, outcome: Reason = Reason.PREEMPTED) -> None:
        """Flush the results, and end the attempt."""
        held, self.held = self.held, None
        if held is None:
            return
        number, curve, position = held.lease.number, self._curve_of(held), self._position
        ending = held.end(outcome)
        self._task.trainings[number].ended_s = self._task.clock.now_s
        if ending is not None and ending.reason is Reason.COMPLETED:
            self._task.completed(number, curve.values[position - 1])

    def _curve_of(self, held: HeldAttempt) -> Curve:
        return self._task.curves[self._task.trainings[held.lease.number].curve]

    def renew(self) -> None:
        """Renew the lease of the worker's trial, as the heartbeat of a real worker does."""
        held = [] if self.held is None else [self.held.lease]
        renewal = renew(self._task.database, self._task.study, worker_id=self._id, held=held)
        if self.held is not None:
            self.held.renewed(renewal.held[self.held.lease.token])


def checkpoint_without_bytes(held: HeldAttempt, *, step: int) -> Checkpoint:
    """Make the record of an inline checkpoint without bytes; only its step is read."""
    return Checkpoint(
        uuid=str(uuid4()),
        trial_id=held.lease.trial_id,
        attempt=held.lease.attempt,
        step=step,
        kind=CheckpointKind.DICT,
        url="inline:",
        digest="0" * 64,
        size_bytes=0,
    )
