"""Run one simulation as a queue of events: each worker ends its step at a simulated time."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any

from msgspec import Struct

from studydb.analysis.recorded_curves import RecordedCurves
from studydb.analysis.simulated import Completion, SimulatedTrial, Simulation
from studydb.db import Database
from studydb.domain.errors import StudyFailed
from studydb.domain.life.states import Status
from studydb.domain.records import LEASE_S, Claim, Study, TrialRow, renewal_s
from studydb.domain.searching import HistorySearcher
from studydb.operations.reads import list_trials
from studydb.operations.recover import recover
from studydb.operations.reported import count_reports
from studydb.operations.study_progress import read_progress
from studydb.study import checking
from studydb.study.simulated_worker import Clock, SimulatedWorker, Task

STEP_S = 1.0
"""How long a step takes if neither the caller nor the curve gives a time."""

StepS = float | Callable[[Mapping[str, Any], int], float]
"""The seconds of a step, or a function that computes them from the params and the step."""


class Settings(Struct, frozen=True):
    """
    The settings of a simulation besides its study and its curves; see `SimulationOptions`.

    Attributes:
        choose: Returns the index of the curve of a new trial.
    """

    choose: Callable[[Claim], int]
    n_workers: int
    seed: int
    step_s: StepS | None
    start_s: float
    saves: bool
    kills: float


class SimulatedRun:
    """One simulation: its events, its workers, and the trials that were fully trained."""

    def __init__(
        self,
        database: Database,
        study: Study,
        recorded: RecordedCurves,
        settings: Settings,
    ) -> None:
        """Register the workers, and let `database.clock` return the simulated time."""
        database.clock = self._clock = clock = Clock()
        self._database, self._study = database, study
        self._recorded, self._settings = recorded, settings
        # Each report is flushed if models or limits need all results so far, or if workers may be
        # killed: a kill would lose results that are buffered.
        flushes = study.has_spending_limits or isinstance(study.searcher, HistorySearcher)
        self._task = Task(
            database,
            study,
            recorded.curves,
            clock,
            settings.choose,
            saves=settings.saves,
            saves_often=settings.kills > 0,
            flushes=flushes or settings.kills > 0,
            completed=self._complete,
        )
        self._events: list[tuple[float, int, SimulatedWorker | None]] = []
        self._numbers = count()
        self._idle = [SimulatedWorker(self._task) for _ in range(settings.n_workers)]
        self._rng = random.Random(f"kills {settings.seed}")  # noqa: S311  no secret
        self._parked: list[SimulatedWorker] = []  # they hold trials, but `max_steps` is reached
        self._completions: list[Completion] = []
        self._n_begun = self._n_kills = 0
        self._end_s = 0.0

    def outcome(self) -> Simulation:
        """
        Run until no worker has work or `time_limit_s` is over; then give back all trials.

        Raises:
            StudyFailed: The study has paused itself, because its custom scheduler gave no answer.
        """
        limit_s = self._study.time_limit_s or math.inf
        self._wake()
        while self._events and self._events[0][0] <= limit_s:
            time_s, _, worker = heappop(self._events)
            self._clock.move_to(time_s)
            if worker is None:
                self._sweep()
            else:
                self._end_step(worker)
        if self._events:
            self._clock.move_to(limit_s)
        for worker in (*self._workers(), *self._parked):
            worker.end()
        progress = read_progress(self._database, self._study)
        if (why := progress.pause_reason) is not None:
            raise StudyFailed(
                f"The simulated study has paused itself: {why.rstrip('.')}. Correct the scheduler, "
                "and simulate again."
            )
        return self._outcome(progress.status)

    def _workers(self) -> Iterator[SimulatedWorker]:
        """Yield the workers that train, in the order of their events."""
        for _, _, worker in sorted(self._events, key=itemgetter(0, 1)):
            if worker is not None:
                yield worker

    # --- events

    def _push(self, delay_s: float, worker: SimulatedWorker | None) -> None:
        heappush(self._events, (self._clock.now_s + delay_s, next(self._numbers), worker))

    def _end_step(self, worker: SimulatedWorker) -> None:
        if self._rng.random() < self._settings.kills:
            self._kill(worker)
            return
        wrote = worker.train()
        self._end_s = self._clock.now_s
        if worker.held is None:
            self._idle.append(worker)
        else:
            self._begin_step(worker)
        if wrote:
            self._wake()

    def _wake(self) -> None:
        """Let each idle worker try to acquire a trial; idle workers see new work at once."""
        for worker in self._idle[:]:
            if self._may_begin and worker.acquire():
                self._idle.remove(worker)
                self._begin_step(worker, self._settings.start_s)

    @property
    def _may_begin(self) -> bool:
        """Whether `max_steps` allows another step."""
        return self._study.max_steps is None or self._n_begun < self._study.max_steps

    def _begin_step(self, worker: SimulatedWorker, delay_s: float = 0.0) -> None:
        if not self._may_begin:
            self._parked.append(worker)
            return
        self._n_begun += 1
        self._push(delay_s + self._step_s(worker), worker)

    def _step_s(self, worker: SimulatedWorker) -> float:
        curve, given = worker.curve, self._settings.step_s
        if callable(given):
            return checking.seconds("step_s(params, step)", given(curve.params, worker.next_step()))
        if given is not None:
            return given
        return STEP_S if curve.step_s is None else curve.step_s

    # --- kills

    def _kill(self, worker: SimulatedWorker) -> None:
        """Drop a worker without ending its attempt; a new worker replaces the dropped one."""
        self._n_kills += 1
        self._n_begun -= 1  # the step did not end
        worker.held = None
        self._idle.append(SimulatedWorker(self._task))
        self._push(LEASE_S, None)
        self._push(LEASE_S + renewal_s(LEASE_S), None)
        while self._parked and self._may_begin:
            self._begin_step(self._parked.pop(0))
        self._wake()

    def _sweep(self) -> None:
        """Renew the leases, and recover lost trials, as the heartbeat of a real worker does."""
        for worker in (*self._workers(), *self._parked):
            worker.renew()
        recover(self._database, self._study)
        self._wake()
        if all(worker is not None for _, _, worker in self._events) and self._has_lost_trials():
            self._push(renewal_s(LEASE_S), None)

    def _has_lost_trials(self) -> bool:
        """Whether the study is RUNNING and has trials to recover, or trials in their back-off."""
        progress = read_progress(self._database, self._study)
        n_held = len([*self._workers(), *self._parked])
        counts = progress.counts
        is_lost = counts.pending > 0 or counts.running > n_held
        return progress.status is Status.RUNNING and is_lost

    # --- what was found

    def _complete(self, number: int, value: float) -> None:
        objective, score = self._study.objective, self._study.objective.score
        earlier = [one.best_value for one in self._completions[-1:]]
        best = min([*earlier, value], key=objective.rank)
        regret = score(best) - score(self._recorded.best_value)
        n_steps = self._task.n_steps
        now_s = self._clock.now_s
        self._completions.append(Completion(now_s, n_steps, number, value, best, regret))

    def _outcome(self, status: Status) -> Simulation:
        reports = count_reports(self._database, self._study)
        task = self._task
        return Simulation(
            objective=self._study.objective,
            status=str(status),
            trials=tuple(map(self._trial, list_trials(self._database, self._study))),
            completions=tuple(self._completions),
            n_steps=task.n_steps,
            n_again=task.n_again,
            n_after_decision=task.n_steps - reports.n_stored + reports.n_after_decision,
            n_judged=reports.n_judged,
            n_kills=self._n_kills,
            duration_s=self._end_s,
            optimum=self._recorded.best_value,
        )

    def _trial(self, row: TrialRow) -> SimulatedTrial:
        training, space = self._task.trainings[row.number], self._recorded.space
        params = row.params or self._recorded.curves[training.curve].params
        return SimulatedTrial(
            number=row.number,
            curve=training.curve,
            params=params if space is None else space.flatten(params),
            state=str(row.state),
            reason=None if row.reason is None else str(row.reason),
            bracket=row.bracket,
            n_steps=training.n_steps,
            last_step=row.summary.last_step,
            value=row.value,
            began_s=training.began_s,
            ended_s=training.ended_s,
        )
