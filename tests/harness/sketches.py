"""
Short, complete forms of three schedulers, with which the tests check the contract.

The package does not have these schedulers yet. Sources: Li et al., "Hyperband" (JMLR 2018);
Golovin et al., "Google Vizier" (KDD 2017), in the form of Ray Tune's `MedianStoppingRule`;
Jaderberg et al., "Population Based Training" (2017).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, Exploit, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import (
    ENQUEUED_DRAWS,
    Close,
    Idle,
    QueueView,
    Ranked,
    Report,
    StudyView,
    Work,
)
from studydb.domain.seeds import unit_number
from studydb.schedulers.base import BaseScheduler

COMPLETED = Decision(Action.STOP, Reason.COMPLETED)


@dataclass(frozen=True)
class HyperBand(BaseScheduler):
    """
    Synchronous HyperBand: a rung waits for all trials of its bracket, then keeps the best.

    A trial's bracket follows from its draw: the first draws fill the bracket with the most trials,
    then the next bracket, and after the last bracket the first again. Enqueued trial N is an
    additional trial of the bracket of draw N.
    """

    max_t: int
    reduction_factor: int = 3
    resumes = True

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """How many trials begin in each bracket; the last bracket has no rung."""
        most = math.floor(math.log(self.max_t) / math.log(self.reduction_factor) + 1e-9)
        return tuple(
            math.ceil((most + 1) / (s + 1) * self.reduction_factor**s) for s in range(most, -1, -1)
        )

    def bracket_of(self, *, seed: int, draw: int) -> int:  # noqa: ARG002
        slot = draw if draw < ENQUEUED_DRAWS else draw - ENQUEUED_DRAWS
        turn, place = divmod(slot, sum(self._sizes))
        return turn * len(self._sizes) + bisect_right(list(accumulate(self._sizes)), place)

    def _end_of(self, bracket: int) -> int:
        turn, kind = divmod(bracket, len(self._sizes))
        return turn * sum(self._sizes) + sum(self._sizes[: kind + 1])

    def milestones(self, bracket: int) -> tuple[int, ...]:
        halvings = len(self._sizes) - 1 - bracket % len(self._sizes)
        return tuple(
            math.ceil(self.max_t / self.reduction_factor**k) for k in range(halvings, 0, -1)
        )

    def next_decision_step(self, bracket: int, step: int) -> int | None:
        due = (*self.milestones(bracket), self.max_t)
        return next((milestone for milestone in due if milestone > step), None)

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        reached = [milestone for milestone in self.milestones(bracket) if milestone <= step]
        return (RungKey(bracket, reached[-1]),) if reached and step < self.max_t else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        if report.step >= self.max_t:
            return COMPLETED
        (key,) = self.locks(report.bracket, report.step)
        rung, entry = view.rung(key), Entry(key, report.score)
        if rung.entered:
            return CONTINUE
        worst = rung.closed_cutoff
        is_worse = worst is None or report.score > worst
        if report.is_nan or (rung.is_closed and is_worse):
            return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, worst)
        if rung.is_closed:  # a late trial
            return Decision(entry=entry, cutoff=worst)
        return Decision(Action.PAUSE, Reason.PAUSED, Entry(key, report.score, waits=True))

    def next_work(self, view: QueueView) -> Work:
        keys = view.rungs()
        for key in sorted(keys, key=lambda key: -key.step):
            best = view.best_waiting(key) if view.rung(key).is_closed else None
            if best is not None:
                return best
        for key in keys:
            if self._can_close(key, view):
                return Close(key, self._keep(key, view))
        return Idle.START_NEW if view.may_start else Idle.WAIT

    def _can_close(self, key: RungKey, view: QueueView) -> bool:
        filled = view.next_draw >= self._end_of(key.bracket) or not view.may_start
        if view.rung(key).is_closed or not filled:
            return False
        before = [one for one in view.rungs() if one.bracket == key.bracket and one < key]
        if any(not view.rung(one).is_closed or view.best_waiting(one) for one in before):
            return False
        return all(step >= key.step for step in view.underway(key.bracket))

    def _keep(self, key: RungKey, view: QueueView) -> int:
        planned = self.planned(key)
        if view.next_draw < self._end_of(key.bracket):  # the budget cannot fill this bracket
            planned = min(planned, view.rung(key).n_entries)
        return math.ceil(planned / self.reduction_factor)

    def planned(self, key: RungKey) -> int:
        """How many trials reach a rung if none ends earlier."""
        n = self._sizes[key.bracket % len(self._sizes)]
        for _ in range(self.milestones(key.bracket).index(key.step)):
            n = math.ceil(n / self.reduction_factor)
        return n


@dataclass(frozen=True)
class MedianStopping(BaseScheduler):
    """
    Stop a trial whose best score is worse than the median of the other trials' running means.

    A rung every `interval` steps records the running mean of each trial to that step.
    """

    max_t: int
    grace_period: int = 1
    interval: int = 1
    min_samples: int = 3
    reads_mean = True

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        due = max(self.grace_period, step + 1)
        due = min(-(-due // self.interval) * self.interval, self.max_t)
        return due if due > step else None

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        milestone = step // self.interval * self.interval
        is_judged = self.grace_period <= milestone and step < self.max_t
        return (RungKey(bracket, milestone),) if is_judged else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        if report.step >= self.max_t:
            return COMPLETED
        for key in self.locks(report.bracket, report.step):
            rung = view.rung(key)
            if rung.entered:
                continue
            entry, best = Entry(key, view.mean()), view.best_score()
            if rung.n >= self.min_samples and rung.cutoff is not None and best > rung.cutoff:
                return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, rung.cutoff)
            return Decision(entry=entry, cutoff=rung.cutoff)
        return CONTINUE


@dataclass(frozen=True)
class PBT(BaseScheduler):
    """
    Asynchronous PBT: the worst trials of a generation continue from a random one of the best.

    Generation N is the rung at step N * `interval`; its entries are the trials that reached it.
    """

    interval: int
    generations: int
    quantile: float = 0.25
    fewest: int = 4
    reads_best = 1000

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        generation = step // self.interval + 1
        return generation * self.interval if generation <= self.generations else None

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        generation = step // self.interval
        return (RungKey(bracket, generation * self.interval),) if generation else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        (key,) = self.locks(report.bracket, report.step)
        if key.step >= self.generations * self.interval:
            return Decision(Action.STOP, Reason.COMPLETED, Entry(key, report.score))
        if view.rung(key).entered:
            return CONTINUE
        entry, others = Entry(key, report.score), view.best(key, self.reads_best)
        n_best = math.ceil((len(others) + 1) * self.quantile)
        is_worst = sum(one.score > report.score for one in others) < n_best
        donors = [one for one in others[:n_best] if one.checkpoint_id is not None]
        if not is_worst or not donors or len(others) + 1 < self.fewest:
            return Decision(entry=entry)
        donor = donors[int(unit_number(report.seed, "donor", key.step) * len(donors))]
        exploit = self._exploit(donor, report.seed, key.step)
        return Decision(Action.EXPLOIT, Reason.EXPLOITED, entry, exploit=exploit)

    def _exploit(self, donor: Ranked, seed: int, step: int) -> Exploit:
        assert donor.checkpoint_id is not None
        factor = 1.2 if unit_number(seed, "factor", step) < 0.5 else 0.8
        config = {name: value * factor for name, value in (donor.config or {}).items()}
        return Exploit(donor.trial_id, donor.checkpoint_id, config)
