"""
Runs a scheduler without a database, on trials and rungs in memory, with reports in a random order.

The executor calls the scheduler as the operations do. With mishaps, trials fail and are lost, and
people stop, pause, resume and enqueue trials.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from studydb.domain.life.decisions import Action, Decision, RungKey
from studydb.domain.life.states import FINAL, Reason, State
from studydb.domain.quantile import Cut, cutoff, exact_cutoff, near
from studydb.domain.scheduling import (
    ENQUEUED_DRAWS,
    Close,
    Idle,
    Ranked,
    Report,
    RungView,
    Scheduler,
    WaitingTrial,
    Work,
)

Curve = Callable[[int, int], float]
"""Takes a trial's number and a step; returns the score of the trial at the step."""

MOST_TURNS = 100_000


@dataclass
class MemoryTrial:
    """A trial; `checkpoint` is the step after which its next attempt begins."""

    number: int
    bracket: int
    state: State = State.PENDING
    reason: Reason | None = None
    by_person: bool = False
    step: int = 0
    checkpoint: int = 0
    values: dict[int, float] = field(default_factory=dict)
    config: dict[str, float] = field(default_factory=lambda: {"lr": 1.0})


@dataclass(eq=False)
class MemoryEntry:
    """An entry of a rung; `==` compares identity, so `MemoryRung.place` finds the entry itself."""

    trial: int
    score: float
    ranked: bool
    waiting: bool
    step: int
    values: dict[int, float]

    def values_from(self, first: int) -> list[float]:
        return [value for step, value in self.values.items() if step >= first]


@dataclass
class MemoryRung:
    """A rung; `cut` is the `place` of the worst entry that was kept at the closing, if any."""

    key: RungKey
    quantile: float
    entries: list[MemoryEntry] = field(default_factory=list)
    closed: bool = False
    cut: tuple[float, int] | None = None

    def place(self, entry: MemoryEntry) -> tuple[float, int]:
        return entry.score, self.entries.index(entry)

    def is_kept(self, entry: MemoryEntry) -> bool:
        return not self.closed or (self.cut is not None and self.place(entry) <= self.cut)

    def view(self, trial: int | None = None) -> RungView:
        """The rung as `judge` reads it for a trial; without a trial, as `next_work` reads it."""
        ranked = sorted([(one.score, one.trial) for one in self.entries if one.ranked])[::-1]
        n, cut = len(ranked), Cut()
        if ranked:
            rank = math.floor((n - 1) * self.quantile)
            cut = Cut(n, rank, ranked[rank])
        better = ranked[cut.rank + 1] if cut.rank + 1 < n else None
        worse = ranked[cut.rank - 1] if cut.rank > 0 else None
        if trial is None:
            limit = exact_cutoff(cut, None if better is None else better[0], self.quantile)
        else:
            limit = cutoff(cut, better, self.quantile)
        return RungView(
            n=n,
            cutoff=limit,
            entered=any(one.trial == trial for one in self.entries),
            n_entries=len(self.entries),
            is_closed=self.closed,
            closed_cutoff=None if self.cut is None else self.cut[0],
            near={} if trial is None else near(cut, worse=worse, better=better),
        )


class ContractExecutor:
    """
    A study in memory.

    Attributes:
        decisions: For each decision, in order: the trial's number, its step and the decision.
        closings: For each closed rung: how many trials the scheduler keeps, and the numbers of the
            trials that waited, best first; those that a person has paused come last.
        steps: How many results all trials together have reported.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        num_trials: float,
        curve: Curve,
        seed: int = 0,
        longest: int | None = None,
        max_steps: float = math.inf,
    ) -> None:
        """
        Prepare to run.

        Args:
            longest: A trial completes once it reports this step or a later step; None for no limit.
        """
        self.scheduler, self.num_trials, self.curve = scheduler, num_trials, curve
        self.longest, self.max_steps, self.steps = longest, max_steps, 0
        self.rng, self.next_draw = Random(seed), 0
        self.trials: list[MemoryTrial] = []
        self.rungs_by_key: dict[RungKey, MemoryRung] = {}
        self.decisions: list[tuple[int, int, Decision]] = []
        self.closings: dict[RungKey, tuple[int, list[int]]] = {}
        self.reporting: MemoryTrial | None = None
        for spec in scheduler.rungs():
            self.rungs_by_key[spec.key] = MemoryRung(*_fields(spec))

    # --- what a scheduler reads

    @property
    def may_start(self) -> bool:
        return len(self.trials) < self.num_trials

    @property
    def spent(self) -> float:
        return min(1.0, self.steps / self.max_steps)

    def rungs(self) -> Sequence[RungKey]:
        live = (
            rung
            for rung in self.rungs_by_key.values()
            if rung.entries and (not rung.closed or any(one.waiting for one in rung.entries))
        )
        return sorted(rung.key for rung in live)

    def rung(self, key: RungKey) -> RungView:
        trial = None if self.reporting is None else self.reporting.number
        assert trial is None or key in self._locked
        rung = self.rungs_by_key.get(key)
        return RungView(0, None) if rung is None else rung.view(trial)

    def best(self, key: RungKey, n: int) -> Sequence[Ranked]:
        assert key in self._locked
        assert n <= self.scheduler.reads_best
        ranked = [one for one in self.rungs_by_key[key].entries if one.ranked]
        ranked.sort(key=lambda one: (one.score, one.trial))
        return [
            Ranked(one.trial, one.score, one.trial, self.trials[one.trial].config)
            for one in ranked[:n]
        ]

    def mean(self) -> float:
        first = self.scheduler.mean_from
        assert first is not None
        assert self.reporting is not None
        values = [value for step, value in self.reporting.values.items() if step >= first]
        mean = sum(values) / len(values)
        return math.inf if math.isnan(mean) else mean

    def best_score(self) -> float:
        assert self.reporting is not None
        known = [value for value in self.reporting.values.values() if not math.isnan(value)]
        return min(known, default=math.inf)

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        rung = self.rungs_by_key.get(key)
        waiting = [
            (rung.place(one), one.trial)
            for one in (rung.entries if rung else ())
            if one.waiting and rung.is_kept(one) and self._is_paused(one.trial)
        ]
        if not waiting:
            return None
        (score, _), trial = min(waiting)
        return WaitingTrial(key, trial, score)

    def underway(self, bracket: int) -> Sequence[int]:
        alive = (State.PENDING, State.RUNNING)
        return [one.step for one in self.trials if one.bracket == bracket and one.state in alive]

    def _is_paused(self, number: int) -> bool:
        trial = self.trials[number]
        return trial.state is State.PAUSED and not trial.by_person

    # --- what workers do

    def run(self, *, workers: int = 3, mishaps: float = 0.0) -> None:
        """
        Run until no worker has anything to do, or until trials have reported `max_steps` results.

        Args:
            mishaps: The probability of a disturbance in each turn of the loop.
        """
        for _ in range(MOST_TURNS):
            if self.steps >= self.max_steps:
                return
            running = [one for one in self.trials if one.state is State.RUNNING]
            if self.rng.random() < mishaps:
                self._disturb()
            elif len(running) < workers and self._take():
                continue
            elif running:
                self.report(self.rng.choice(running))
            elif not self._give_up_one():
                return
        raise AssertionError("The study does not end.")

    def _take(self) -> bool:
        """Claim a trial, or do what the scheduler says; False if there is nothing to do."""
        pending = [one for one in self.trials if one.state is State.PENDING]
        if not pending:
            work = self.next_work()
            if isinstance(work, Close):
                self.close(work)
            elif isinstance(work, WaitingTrial):
                self._leave(work.trial_id)
                self.trials[work.trial_id].state = State.PENDING
            elif work is Idle.WAIT or not self.may_start:
                return False
            else:
                self._add(self.next_draw)
                self.next_draw += 1
            return True
        trial = self.rng.choice(pending)
        trial.state, trial.step = State.RUNNING, trial.checkpoint
        trial.values = {step: value for step, value in trial.values.items() if step <= trial.step}
        return True

    def next_work(self) -> Work:
        return self.scheduler.next_work(self)

    def _add(self, draw: int) -> None:
        bracket = self.scheduler.bracket_of(seed=0, draw=draw)
        self.trials.append(MemoryTrial(len(self.trials), bracket))

    def close(self, closing: Close) -> None:
        rung = self.rungs_by_key[closing.rung]
        assert rung.entries
        assert not rung.closed
        waiting = sorted(
            (self.trials[one.trial].by_person, rung.place(one))
            for one in rung.entries
            if one.waiting
        )
        places = [place for _, place in waiting]  # trials that a person has paused come last
        self.closings[closing.rung] = (closing.keep, [rung.entries[i].trial for _, i in places])
        rung.closed, rung.cut = True, max(places[: closing.keep], default=None)

    def report(self, trial: MemoryTrial) -> None:
        """Report a trial's next step or, one time in four, the step after it."""
        step = trial.step + self.rng.choice([1, 1, 1, 2])
        self.tell(trial, step, self.curve(trial.number, step))

    def tell(self, trial: MemoryTrial, step: int, score: float) -> None:
        """Store a report; if it reaches a decision step, judge it and carry out the decision."""
        due = self.scheduler.next_decision_step(trial.bracket, trial.step)
        trial.step, trial.values[step] = step, score
        self.steps += 1
        if due is None or trial.step < due:
            if self.longest is not None and trial.step >= self.longest:
                self._end(trial, Reason.COMPLETED)
            return
        decision = self._judge(trial, score)
        self.decisions.append((trial.number, trial.step, decision))
        trial.checkpoint = trial.step
        if decision.action is Action.STOP:
            self._end(trial, decision.reason or Reason.EARLY_STOPPED)
        elif decision.action is Action.PAUSE:
            trial.state = State.PAUSED
        elif decision.exploit is not None:
            trial.config = dict(decision.exploit.config)
        elif self.longest is not None and trial.step >= self.longest:
            self._end(trial, Reason.COMPLETED)

    def _judge(self, trial: MemoryTrial, score: float) -> Decision:
        self._locked = self.scheduler.locks(trial.bracket, trial.step)
        assert list(self._locked) == sorted(self._locked)
        for key in self._locked:
            spec = self.scheduler.rung_spec(key)
            self.rungs_by_key.setdefault(key, MemoryRung(*_fields(spec)))
        is_nan, self.reporting = math.isnan(score), trial
        given = math.inf if is_nan else score
        report = Report(trial.step, given, is_nan, trial.bracket, trial.number, seed=trial.number)
        decision = self.scheduler.judge(report, self)
        self.reporting = None
        if (entry := decision.entry) is not None:
            rung = self.rungs_by_key[entry.rung]
            assert all(one.trial != trial.number for one in rung.entries)
            rung.entries.append(
                MemoryEntry(
                    trial.number,
                    entry.score,
                    not is_nan,
                    entry.waits,
                    trial.step,
                    dict(trial.values),
                )
            )
        return decision

    # --- ends

    def _end(self, trial: MemoryTrial, reason: Reason) -> None:
        trial.state, trial.reason = State.TERMINATED, reason
        self._leave(trial.number)

    def _leave(self, number: int) -> None:
        for rung in self.rungs_by_key.values():
            for entry in rung.entries:
                entry.waiting = entry.waiting and entry.trial != number

    def _give_up_one(self) -> bool:
        """End one trial that waits at a closed rung and was not kept; False if there is none."""
        for rung in self.rungs_by_key.values():
            for entry in rung.entries:
                waits = entry.waiting and self._is_paused(entry.trial)
                if waits and not rung.is_kept(entry):
                    self._end(self.trials[entry.trial], Reason.GIVEN_UP)
                    return True
        return False

    def _disturb(self) -> None:
        """Try once to fail, lose, stop, pause, resume, enqueue or give up a trial, at random."""
        alive = [one for one in self.trials if one.state not in FINAL]
        what = self.rng.choice(["fail", "lose", "stop", "pause", "resume", "enqueue", "give up"])
        if what == "give up":
            self._give_up_one()
        elif what == "enqueue" and self.may_start:
            self._add(ENQUEUED_DRAWS + len(self.trials))
        elif alive:
            self._happen(what, self.rng.choice(alive))

    def _happen(self, what: str, trial: MemoryTrial) -> None:
        if what == "stop" or (what == "fail" and trial.state is State.RUNNING):
            self._end(trial, Reason.CANCELLED if what == "stop" else Reason.FAILED)
        elif what == "lose" and trial.state is State.RUNNING:
            trial.state = State.PENDING
            trial.checkpoint = self.rng.choice([0, trial.checkpoint])
        elif what == "pause" and trial.state is not State.RUNNING:
            trial.state, trial.by_person = State.PAUSED, True
        elif what == "resume" and trial.state is State.PAUSED:
            if trial.by_person and self._waits(trial.number):
                trial.by_person = False
                return
            self._leave(trial.number)
            trial.state, trial.by_person = State.PENDING, False

    def _waits(self, number: int) -> bool:
        entries = (one for rung in self.rungs_by_key.values() for one in rung.entries)
        return any(one.waiting and one.trial == number for one in entries)


def _fields(spec: object) -> tuple[RungKey, float]:
    return spec.key, spec.quantile  # type: ignore[attr-defined]
