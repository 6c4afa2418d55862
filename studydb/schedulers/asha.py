"""
Asynchronous successive halving, by stopping or by promotion.

Sources: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020). Stopping
follows Ray Tune's `AsyncHyperBandScheduler`: a report at a rung is compared with a percentile of
the scores recorded there before it, and then recorded there, too. Promotion follows Syne Tune
0.13's `PromotionRungSystem`: every trial pauses at its rung, and a free worker resumes the best
paused trial whose score is not worse than the quantile of all scores there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import (
    Idle,
    QueueView,
    Report,
    RungSpec,
    StudyView,
    WaitingTrial,
    Work,
)
from studydb.domain.seeds import unit_number
from studydb.schedulers.base import BaseScheduler

STOPPING, PROMOTION = "stopping", "promotion"

FEWEST_ENTRIES = 2
"""At a rung with fewer entries no trial is promoted."""


@dataclass(frozen=True)
class ASHA(BaseScheduler):
    """
    Train the better trials longer: of `reduction_factor` trials at a rung, one goes on.

    Bracket `s` has a rung at each step `grace_period * reduction_factor ** k` below `max_t`, with
    k >= s. A rung's cutoff is the percentile (1 - 1/reduction_factor) * 100 of its negated scores.

    "stopping": a trial that is strictly worse than the cutoff of the scores before it is stopped.
    The first trial at a rung continues. NaN stops a trial; in Ray Tune the trial continues.

    "promotion": a trial pauses at each rung. A free worker looks at the best waiting trial of each
    rung, of all brackets, from the highest step down. It resumes the first that is not worse than
    its rung's cutoff, if the rung has at least two scores; so of trials with equal scores, all are
    promoted or none. If there is no such trial, the worker starts a new one. A trial whose score is
    +Inf is never promoted. A trial that saves no checkpoint begins again when it is resumed. NaN
    stops a trial. Syne Tune draws a bracket, and looks only at this bracket. At the last rung Syne
    Tune promotes the share (last milestone / max_t), which can differ from 1/reduction_factor.

    Attributes:
        max_t: The step that completes a trial ("R" in the paper).
        grace_period: The first rung's step ("r" in the paper); no trial stops before it.
        reduction_factor: One of this many trials at a rung continues ("eta" in the paper).
        brackets: The number of brackets. A new trial's bracket is random; as in Ray Tune, each
            bracket is e times as likely as the next, which has one rung less.
        type: "stopping" or "promotion".
    """

    is_bounded: ClassVar[bool] = False  # existing studies have max_t=10**30 for "no end"

    max_t: int
    grace_period: int = 1
    reduction_factor: float = 4
    brackets: int = 1
    type: str = STOPPING

    def _check(self) -> None:
        if not 1 <= self.grace_period <= self.max_t:
            raise InvalidSpec(
                f"ASHA's grace_period is {self.grace_period} and max_t {self.max_t}; "
                "it needs 1 <= grace_period <= max_t."
            )
        if not 1 < self.reduction_factor < math.inf:
            raise InvalidSpec(
                f"ASHA's reduction_factor is {self.reduction_factor}; it must be greater than 1."
            )
        if self.type not in (STOPPING, PROMOTION):
            raise InvalidSpec(
                f"ASHA's type is {self.type!r}; it must be {STOPPING!r} or {PROMOTION!r}."
            )
        if self.brackets < 1 or (self.brackets > 1 and self.brackets > self._most_brackets):
            raise InvalidSpec(
                f"ASHA's brackets are {self.brackets}; with its max_t, grace_period and "
                f"reduction_factor there are 1 to {self._most_brackets}."
            )

    @property
    def _most_brackets(self) -> int:
        return len(self._milestones_of_first) + 1  # the last bracket has no rung

    @cached_property
    def _milestones_of_first(self) -> tuple[int, ...]:
        halvings = math.log(self.max_t / self.grace_period) / math.log(self.reduction_factor)
        steps = (
            math.ceil(self.grace_period * self.reduction_factor**k)
            for k in range(int(halvings + 1))
        )
        return tuple(sorted({step for step in steps if step < self.max_t}))

    def milestones(self, bracket: int = 0) -> tuple[int, ...]:
        """Return the steps of a bracket's rungs, ascending, all below `max_t`."""
        if not 0 <= bracket < self.brackets:  # another program has written the row
            return ()
        return self._milestones_of_first[bracket:]

    @property
    def quantile(self) -> float:
        """The level, 0 to 1, of the quantile of negated scores, with Ray Tune's rounding error."""
        return (1 - 1 / self.reduction_factor) * 100 / 100

    def to_json(self) -> dict[str, Any]:
        """Leave out defaults of `brackets` and `type`, so that an older studydb reads the row."""
        later = {"brackets": 1, "type": STOPPING}
        return {k: v for k, v in super().to_json().items() if later.get(k) != v}

    @property
    def resumes(self) -> bool:
        return self.type == PROMOTION

    def rungs(self) -> Sequence[RungSpec]:
        return tuple(map(self.rung_spec, self._keys))

    @cached_property
    def _keys(self) -> tuple[RungKey, ...]:
        return tuple(
            RungKey(bracket, step)
            for bracket in range(self.brackets)
            for step in self.milestones(bracket)
        )

    def bracket_of(self, *, seed: int, draw: int) -> int:
        """Draw a bracket; the probabilities are the softmax of the numbers of rungs."""
        if self.brackets == 1:
            return 0
        weights = [math.exp(-bracket) for bracket in range(self.brackets)]
        left = unit_number(seed, "bracket", draw) * sum(weights)
        for bracket, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return bracket
        return self.brackets - 1

    def next_decision_step(self, bracket: int, step: int) -> int | None:
        """Return the first milestone after `step`, else `max_t`; None from `max_t` on."""
        due = (*self.milestones(bracket), self.max_t)
        return next((milestone for milestone in due if milestone > step), None)

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """Return the rung of the last milestone up to `step`; none from `max_t` on."""
        reached = [milestone for milestone in self.milestones(bracket) if milestone <= step]
        return (RungKey(bracket, reached[-1]),) if reached and step < self.max_t else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Judge one report against its rung.

        Args:
            report: Its `score` is lower for better values, and +Inf for NaN.
            view: The rung before this report.
        """
        if report.step >= self.max_t:
            return Decision(Action.STOP, Reason.COMPLETED)
        for key in self.locks(report.bracket, report.step):
            rung = view.rung(key)
            if not rung.entered:
                return self._judge_at(key, report, rung.cutoff)
        return CONTINUE

    def _judge_at(self, key: RungKey, report: Report, cutoff: float | None) -> Decision:
        if self.type == PROMOTION:
            if report.is_nan:
                return Decision(Action.STOP, Reason.EARLY_STOPPED, Entry(key, report.score))
            return Decision(Action.PAUSE, Reason.PAUSED, Entry(key, report.score, waits=True))
        entry = Entry(key, report.score)
        worse = cutoff is not None and report.score > cutoff
        if report.is_nan or worse:
            return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, cutoff)
        return Decision(entry=entry, cutoff=cutoff)

    @cached_property
    def _from_highest(self) -> tuple[RungKey, ...]:
        return tuple(sorted(self._keys, key=lambda key: (-key.step, key.bracket)))

    def next_work(self, view: QueueView) -> Work:
        if not self.resumes:
            return Idle.START_NEW
        return next(self._promotable(view), Idle.START_NEW)

    def _promotable(self, view: QueueView) -> Iterator[WaitingTrial]:
        for key in self._from_highest:
            rung, best = view.rung(key), view.best_waiting(key)
            if best is None or rung.cutoff is None or rung.n < FEWEST_ENTRIES:
                continue
            if best.score <= rung.cutoff and best.score < math.inf:
                yield best
