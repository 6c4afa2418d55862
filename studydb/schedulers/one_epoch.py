"""
One-epoch: train all trials for a few steps, then only the best of them to the end.

Source: Egele et al., "The Unreasonable Effectiveness of Early Discarding After One Epoch in Neural
Network Hyperparameter Optimization" (Neurocomputing 2024, arXiv 2404.04111).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import RungKey
from studydb.domain.scheduling import Close, Idle, QueueView, Work
from studydb.domain.specs.spec import suggesting_options
from studydb.schedulers.base import next_milestone
from studydb.schedulers.closing import ClosingScheduler

HALF = 0.5
"""
Once this share of one of the study's limits is spent, no new trial is made, and the best trials are
chosen as soon as every trial has reached step `i`, has ended or is paused by a person. There is one
exception: if no trial waits at step `i` at that time, a new trial is made.
"""


@suggesting_options
@dataclass(frozen=True)
class OneEpoch(ClosingScheduler):
    """
    Train every trial to step `i`, then the best `top_k` trials to `max_t`, and end the others.

    The trials are chosen when two conditions hold. First, every trial has reached step `i`, has
    ended or is paused by a person. Second, no new trial can be made (`num_trials` is reached, or
    the searcher has no further point), or half of a limit of the study (steps, cost or time) is
    spent. If no trial waits at step `i` at that time, more trials are made as long as the study
    allows. A study with an endless searcher, and without `num_trials` and limits, is refused,
    because its trials would never be chosen. Of trials with equal scores, the first that reported
    is chosen. NaN stops a trial. If the study is extended after the choice, a later trial is
    stopped if it is worse than all trials that were chosen; otherwise it goes on.

    Attributes:
        i: The step at which the trials are compared.
        top_k: How many trials train on.
        max_t: The step that completes a trial.
    """

    i: int
    top_k: int
    max_t: int

    def _check(self) -> None:
        if not 1 <= self.i < self.max_t:
            raise InvalidSpec(
                f"OneEpoch's i is {self.i} and max_t {self.max_t}; it needs 1 <= i < max_t."
            )
        if self.top_k < 1:
            raise InvalidSpec(f"OneEpoch's top_k is {self.top_k}; it must be at least 1.")

    @property
    def needs_budget(self) -> bool:
        return True

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        return next_milestone((self.i,), self.max_t, step)

    @property
    def _rung(self) -> RungKey:
        return RungKey(0, self.i)

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:  # noqa: ARG002
        return (self._rung,) if self.i <= step < self.max_t else ()

    def next_work(self, view: QueueView) -> Work:
        """Start new trials; then choose the best of them; then resume the chosen trials."""
        rung, best = view.rung(self._rung), view.best_waiting(self._rung)
        if rung.is_closed and best is not None:
            return best
        if view.may_start and view.spent < HALF:
            return Idle.START_NEW
        underway = view.underway(0)
        if rung.is_closed or any(step < self.i for step in underway):
            return Idle.WAIT
        if best is not None:
            return Close(self._rung, self.top_k)
        return Idle.START_NEW if view.may_start and not underway else Idle.WAIT
