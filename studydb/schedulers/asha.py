"""
Asynchronous successive halving, stopping variant.

Sources: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020). The rule
for stopping is that of Ray Tune's `AsyncHyperBandScheduler`: a report at a rung is compared with a
percentile of the scores recorded there before it, and then recorded itself.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision
from studydb.domain.life.states import Reason
from studydb.domain.specs.spec import Spec
from studydb.domain.view import Report, RungSpec, StudyView


@dataclass(frozen=True)
class ASHA(Spec):
    """
    Stop a trial at a rung when it is strictly worse than the rung's cutoff.

    There is a rung at each step `grace_period * reduction_factor ** k` below `max_t`. The cutoff is
    the linear percentile at (1 - 1/reduction_factor) * 100 of the negated scores recorded before.
    The first trial at a rung continues. NaN stops a trial; in Ray Tune the trial continues.

    Attributes:
        max_t: The step that completes a trial ("R" in the paper).
        grace_period: The first rung's step ("r" in the paper); no trial stops before it.
        reduction_factor: One of this many trials at a rung continues ("eta" in the paper).
    """

    is_bounded: ClassVar[bool] = False  # existing studies have max_t=10**30 for "no end"

    max_t: int
    grace_period: int = 1
    reduction_factor: float = 4

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

    @cached_property
    def milestones(self) -> tuple[int, ...]:
        """The rungs' steps, ascending, all below `max_t`."""
        halvings = math.log(self.max_t / self.grace_period) / math.log(self.reduction_factor)
        steps = (
            math.ceil(self.grace_period * self.reduction_factor**k)
            for k in range(int(halvings + 1))
        )
        return tuple(sorted({step for step in steps if step < self.max_t}))

    @property
    def quantile(self) -> float:
        """The cutoff's rank among the negated scores, in [0, 1], rounded as Ray Tune rounds it."""
        return (1 - 1 / self.reduction_factor) * 100 / 100

    def rungs(self) -> tuple[RungSpec, ...]:
        return tuple(RungSpec(0, step, self.quantile) for step in self.milestones)

    def rung_of(self, step: int) -> int | None:
        """Return the last milestone up to `step`; None before the first and from `max_t` on."""
        if step >= self.max_t:
            return None
        return max((milestone for milestone in self.milestones if milestone <= step), default=None)

    def next_decision_step(self, step: int) -> int | None:
        """Return the first milestone after `step`, else `max_t`; None from `max_t` on."""
        return next((due for due in (*self.milestones, self.max_t) if due > step), None)

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Judge one report against its rung.

        Args:
            report: Its `score` is lower for better values, and +Inf for NaN.
            view: The study before this report; `view.rung(step)` holds count and cutoff.
        """
        if report.step >= self.max_t:
            return Decision(Action.STOP, Reason.COMPLETED)
        milestone = self.rung_of(report.step)
        if milestone is None:
            return CONTINUE
        rung = view.rung(milestone)
        if rung.entered:
            return CONTINUE
        worse = rung.cutoff is not None and report.score > rung.cutoff
        if worse or report.is_nan:
            return Decision(Action.STOP, Reason.EARLY_STOPPED, milestone, rung.cutoff)
        return Decision(rung_step=milestone, cutoff=rung.cutoff)
