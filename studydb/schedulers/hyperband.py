"""
Synchronous HyperBand: a rung waits for all trials of its bracket, then the best of them go on.

Source: Li et al., "Hyperband" (JMLR 2018). The numbers of brackets and of their trials are those of
Ray Tune's `HyperBandScheduler`. As in the paper, the bracket with the most trials comes first; in
Ray Tune it comes last.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import RungKey
from studydb.domain.scheduling import (
    ENQUEUED_DRAWS,
    Close,
    Idle,
    QueueView,
    Work,
)
from studydb.domain.specs.spec import suggesting_options
from studydb.schedulers.base import next_milestone
from studydb.schedulers.closing import ClosingScheduler

_ROUNDING = 1e-12
"""The relative rounding error that is tolerated in a number that should be an integer."""

SMALLEST_FACTOR = 2
"""With a smaller factor two rungs of a bracket could be at the same step."""


@suggesting_options
@dataclass(frozen=True)
class HyperBand(ClosingScheduler):
    """
    Compare all trials of a bracket at each rung; train the best 1 / `reduction_factor` further.

    A band has the brackets s = S, S - 1, … 0, with S = log(max_t) to the base `reduction_factor`,
    rounded. In bracket s, ceil((S + 1) / (s + 1) * reduction_factor**s) trials begin. The bracket
    has a rung at each step max_t / reduction_factor**k, rounded down, for k from s down to 1; a
    bracket whose first rung would be at step 0 is left out. When all brackets of a band are filled,
    the next band begins, and its brackets get the next numbers.

    When a trial is made, its draw decides its bracket. An enqueued trial with the number N is an
    additional trial in the bracket of draw N. A trial pauses at each rung. The rung closes when no
    further trial of its bracket can reach it, that is, when two conditions hold. First, every trial
    of the bracket has arrived, has ended or is paused by a person. Second, all draws of the bracket
    are taken, or no more trials can be made. Then the best ceil(planned / reduction_factor) of the
    trials that wait at the rung go on; `planned` is the number of trials that reach the rung if
    none ends earlier. Trials with equal scores rank in the order in which they arrived. If the
    budget does not fill the bracket, there are two exceptions. If fewer trials arrived than
    planned, the number of arrived trials replaces `planned`. If no trial waits at the rung, the
    rung stays open for the trials of an extended study. Free workers begin the next bracket while
    trials of this bracket still run.

    NaN stops a trial. A trial that arrives at a closed rung is stopped if it is worse than all
    trials that the rung kept; otherwise it goes on.

    Attributes:
        max_t: The step that completes a trial ("R" in the paper).
        reduction_factor: Of this many trials at a rung, one goes on ("eta" in the paper).
    """

    max_t: int
    reduction_factor: float = 3

    def _check(self) -> None:
        if self.max_t < 1:
            raise InvalidSpec(f"HyperBand's max_t is {self.max_t}; it must be at least 1.")
        if not SMALLEST_FACTOR <= self.reduction_factor < math.inf:
            raise InvalidSpec(
                f"HyperBand's reduction_factor is {self.reduction_factor}; it must be a finite "
                f"number, at least {SMALLEST_FACTOR}."
            )
        if not any(self._halvings):
            raise InvalidSpec(
                f"HyperBand's max_t is {self.max_t} and its reduction_factor "
                f"{self.reduction_factor}, so no bracket has a rung; give a max_t that is at least "
                "the reduction_factor."
            )

    @cached_property
    def _halvings(self) -> tuple[int, ...]:
        """How many rungs each bracket of a band has ("s" in the paper)."""
        most = round(math.log(self.max_t) / math.log(self.reduction_factor))
        return tuple(s for s in range(most, -1, -1) if self._milestone(s) >= 1)

    def _milestone(self, k: int) -> int:
        return math.floor(self.max_t / self.reduction_factor**k * (1 + _ROUNDING))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many trials begin in each bracket of a band."""
        n_brackets = round(math.log(self.max_t) / math.log(self.reduction_factor)) + 1
        exact = (n_brackets / (s + 1) * self.reduction_factor**s for s in self._halvings)
        return tuple(math.ceil(n * (1 - _ROUNDING)) for n in exact)

    @property
    def band_size(self) -> int:
        """How many trials fill each bracket once; a good `num_trials` is a multiple of this."""
        return sum(self.sizes)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes))

    def bracket_of(self, *, seed: int, draw: int) -> int:  # noqa: ARG002
        """Return the bracket of a draw; bracket numbers go on from one band to the next."""
        place = draw if draw < ENQUEUED_DRAWS else draw - ENQUEUED_DRAWS
        band, place = divmod(place, self.band_size)
        return band * len(self.sizes) + bisect_right(self._ends, place)

    def _end_of(self, bracket: int) -> int:
        """Return the first draw after the draws of a bracket."""
        band, kind = divmod(bracket, len(self.sizes))
        return band * self.band_size + self._ends[kind]

    def milestones(self, bracket: int) -> tuple[int, ...]:
        """Return the steps of a bracket's rungs, ascending, all below `max_t`."""
        halvings = self._halvings[bracket % len(self._halvings)]
        return tuple(self._milestone(k) for k in range(halvings, 0, -1))

    def next_decision_step(self, bracket: int, step: int) -> int | None:
        """Return the next milestone after `step`, or `max_t`; see `next_milestone`."""
        return next_milestone(self.milestones(bracket), self.max_t, step)

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """Return the rung of the last milestone up to `step`; none from `max_t` on."""
        reached = [milestone for milestone in self.milestones(bracket) if milestone <= step]
        return (RungKey(bracket, reached[-1]),) if reached and step < self.max_t else ()

    def next_work(self, view: QueueView) -> Work:
        """
        Resume the best trial that a closed rung has kept, from the highest step down.

        If no trial can be resumed, a rung closes. If no rung can close, a new trial starts if the
        budget allows it. The rungs of a filled bracket close in ascending order of their steps: if
        a rung can close, the open rungs at lower steps can close too, and `view.rungs()` names the
        lower rungs first. The trials that go on from a closed rung are resumed before another rung
        closes.
        """
        keys = view.rungs()
        for key in sorted(keys, key=lambda key: -key.step):
            best = view.best_waiting(key) if view.rung(key).is_closed else None
            if best is not None:
                return best
        for key in keys:
            if self._can_close(key, view):
                return Close(key, self._keep(key, view))
        return Idle.START_NEW if view.may_start else Idle.WAIT

    def _is_filled(self, bracket: int, view: QueueView) -> bool:
        return view.next_draw >= self._end_of(bracket)

    def _can_close(self, key: RungKey, view: QueueView) -> bool:
        if view.rung(key).is_closed:
            return False
        is_filled = self._is_filled(key.bracket, view)
        if not is_filled and (view.may_start or view.best_waiting(key) is None):
            return False
        return all(step >= key.step for step in view.underway(key.bracket))

    def _keep(self, key: RungKey, view: QueueView) -> int:
        planned = self.planned(key)
        if not self._is_filled(key.bracket, view):
            planned = min(planned, view.rung(key).n_entries)
        return math.ceil(planned / self.reduction_factor)

    def planned(self, key: RungKey) -> int:
        """Return how many trials of a filled bracket reach a rung if none ends earlier."""
        n = self.sizes[key.bracket % len(self.sizes)]
        for _ in range(self.milestones(key.bracket).index(key.step)):
            n = math.ceil(n / self.reduction_factor)
        return n
