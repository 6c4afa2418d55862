"""
Asynchronous successive halving, stopping variant.

Sources: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020); the rule
    for
stopping is Ray Tune's `AsyncHyperBandScheduler`: a report at a rung is held against the percentile
of what was recorded there before it, then recorded itself.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision
from studydb.domain.life.states import Reason
from studydb.domain.view import Report, RungSpec, StudyView


@dataclass(frozen=True)
class ASHA:
    """
    Stop a trial at a rung when it is strictly worse than the rung's cutoff.

    Rungs stand at `grace_period * reduction_factor ** k` below `max_t`. The cutoff is the linear
    percentile at (1 - 1/reduction_factor) * 100 of the negated scores recorded before; the first
    arrival goes on. NaN stops, where Ray's rule would let it go on.

    Attributes:
        max_t: The last step of a trial ("R" in the paper); reaching it completes the trial.
        grace_period: The first rung's step ("r" in the paper); no trial stops before it.
        reduction_factor: One in so many goes on ("eta" in the paper).
    """

    max_t: int
    grace_period: int = 1
    reduction_factor: float = 4

    def __post_init__(self) -> None:
        """Refuse what makes no rungs."""
        for name in ("max_t", "grace_period", "reduction_factor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidSpec(f"ASHA's {name} is {value!r}; it must be a number.")
        for name in ("max_t", "grace_period"):
            if not float(getattr(self, name)).is_integer():
                raise InvalidSpec(f"ASHA's {name} is {getattr(self, name)}; steps are integers.")
        if not 1 <= self.grace_period <= self.max_t:
            raise InvalidSpec(
                f"ASHA's grace_period is {self.grace_period} and max_t {self.max_t}; "
                "it needs 1 <= grace_period <= max_t."
            )
        if not 1 < self.reduction_factor < math.inf:
            raise InvalidSpec(
                f"ASHA's reduction_factor is {self.reduction_factor}; it must be greater than 1."
            )

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row."""
        return {
            "name": "ASHA",
            "max_t": self.max_t,
            "grace_period": self.grace_period,
            "reduction_factor": self.reduction_factor,
        }

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
        """Where the cutoff stands among the negated scores, by Ray's own arithmetic."""
        return (1 - 1 / self.reduction_factor) * 100 / 100

    def rungs(self) -> tuple[RungSpec, ...]:
        """One rung per milestone."""
        return tuple(RungSpec(0, step, self.quantile) for step in self.milestones)

    def rung_of(self, step: int) -> int | None:
        """The highest milestone that `step` has reached; None before the first and at the end."""
        if step >= self.max_t:
            return None
        return max((milestone for milestone in self.milestones if milestone <= step), default=None)

    def next_decision_step(self, step: int) -> int | None:
        """The first milestone after `step`, or `max_t`; None once that is reached."""
        return next((due for due in (*self.milestones, self.max_t) if due > step), None)

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Judge one report against its rung.

        Args:
            report: `score` is oriented: lower is better, NaN arrives as +Inf.
            view: What was recorded before this report; `view.rung(step)` holds count and cutoff.
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
