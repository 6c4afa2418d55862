"""
Asynchronous successive halving, by stopping or by promotion.

Sources: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020). Stopping
follows Ray Tune's `AsyncHyperBandScheduler`: a report at a rung is compared with a percentile of
the scores that the rung has recorded before, and is then recorded, too. The rule "syne_tune"
follows the `AsynchronousSuccessiveHalving` of Syne Tune 0.16: a trial is judged by its rank among
all scores of the rung, its own included. Promotion follows Syne Tune 0.13's `PromotionRungSystem`:
every trial pauses at its rung, and a free worker resumes the best paused trial whose score is not
worse than the quantile of all scores of the rung.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.metrics import STEPS_END
from studydb.domain.scheduling import (
    Idle,
    QueueView,
    Report,
    RungSpec,
    RungView,
    StudyView,
    WaitingTrial,
    Work,
)
from studydb.domain.seeds import unit_number
from studydb.domain.specs.spec import suggesting_options
from studydb.schedulers.base import BaseScheduler, next_milestone

STOPPING, PROMOTION = "stopping", "promotion"
RAY, SYNE_TUNE = "ray", "syne_tune"

END_GAME = 0.4
"""
The share of a limit, or of all training, that the end game takes by default; see `ASHA`.

On both tasks of docs/schedulers.md, this share finds a better trial than 0.2 does.
"""

FEWEST_ENTRIES = 2
"""
A rung with fewer scores promotes no trial. NaN does not count, nor do the scores of invalidated and
cloned trials.
"""


@suggesting_options
@dataclass(frozen=True)
class ASHA(BaseScheduler):
    """
    Train the better trials longer: of `reduction_factor` trials at a rung, one goes on.

    The first bracket has a rung at each step `grace_period * reduction_factor ** k`, rounded up,
    that is below `max_t` (and below 2**62, as no trial can reach a later step). Bracket b, counted
    from 0, has these rungs without the b lowest. A rung's cutoff is the score at the percentile (1
    - 1/reduction_factor) * 100 of its negated scores.

    "stopping": by the rule "ray", a trial is stopped if it is strictly worse than the cutoff of the
    scores that the rung had before. By the rule "syne_tune", a trial is stopped if more than n /
    reduction_factor scores are strictly better; n is the number of the rung's scores, the trial's
    own included. The first trial at a rung continues. NaN stops a trial and is not counted among
    the rung's scores; in Ray Tune the trial continues, and in Syne Tune NaN has no defined rank.

    "promotion": a trial pauses at each rung. A free worker looks at the rungs of all brackets, from
    the highest step down, and at the best waiting trial of each rung. The worker resumes the first
    trial that is not worse than its rung's cutoff. Only the score is compared with the cutoff, so
    either all trials with the same score may be resumed, or none of them. A rung with fewer than
    two scores promotes no trial. If no rung promotes a trial, the worker starts a new trial. A
    trial whose score is +Inf is never promoted. A trial that saves no checkpoint begins again at
    the first step when it is resumed. NaN stops a trial. In Syne Tune, a free worker draws a
    bracket, and looks only at the rungs of this bracket. At the last rung, Syne Tune promotes the
    share (last milestone / max_t), which can differ from 1/reduction_factor.

    The end game of "promotion": once only the share `end_game` of one of the study's limits (steps,
    cost or time) is left, no new trials are made. Free workers resume the best of all waiting
    trials, even if it is worse than the cutoff of its rung. A study can run out of new trials
    while more than this share is left: `num_trials` is reached, or the searcher has no more points.
    Then the end game begins once no trial underway is below its first rung, and no rung promotes a
    trial. In this case, waiting trials are resumed as long as the end game takes at most the share
    `end_game` of all training. If no trial has reached `max_t` or is on its way there, a trial is
    resumed even if the end game then takes more. To compute the share, the training without an end
    game is estimated: of n trials at a bracket's first rung, n / reduction_factor**i train up to
    the rung that is i rungs higher.

    Attributes:
        max_t: The step that completes a trial ("R" in the paper).
        grace_period: The first rung's step ("r" in the paper); ASHA stops no trial before it.
        reduction_factor: Of this many trials at a rung, one continues ("eta" in the paper).
        brackets: The number of brackets. A new trial's bracket is random; as in Ray Tune, each
            bracket is e (2.718) times as likely as the next bracket, which has one rung less.
        type: "stopping" or "promotion".
        rule: The rule by which "stopping" stops trials, "ray" or "syne_tune".
        end_game: The share of a limit, or of all training, that is spent on resuming the best
            paused trials, from 0 (no end game) to less than 1. By default 0.4 for "promotion".
            "stopping" has no end game. If `max_t` is 2**62 or more, which no trial can reach, there
            is no end game.
    """

    absent: ClassVar[Mapping[str, Any]] = {"end_game": 0.0}  # older versions had no end game
    is_bounded: ClassVar[bool] = False  # existing studies have max_t=10**30 for "no end"

    max_t: int
    grace_period: int = 1
    reduction_factor: float = 4
    brackets: int = 1
    type: str = STOPPING
    rule: str = RAY
    end_game: float | None = None

    def _check(self) -> None:
        if not 1 <= self.grace_period <= self.max_t:
            raise InvalidSpec(
                f"ASHA's grace_period is {self.grace_period} and max_t {self.max_t}; "
                "it needs 1 <= grace_period <= max_t."
            )
        if not 1 < self.reduction_factor < math.inf:
            raise InvalidSpec(
                f"ASHA's reduction_factor is {self.reduction_factor}; it must be a finite number "
                "greater than 1."
            )
        if self.type not in (STOPPING, PROMOTION):
            raise InvalidSpec(
                f"ASHA's type is {self.type!r}; it must be {STOPPING!r} or {PROMOTION!r}."
            )
        if self.brackets < 1 or (self.brackets > 1 and self.brackets > self._most_brackets):
            raise InvalidSpec(
                f"ASHA's brackets is {self.brackets}; with this max_t, grace_period and "
                f"reduction_factor it must be from 1 to {self._most_brackets}."
            )
        self._check_rule()
        self._check_end_game()

    def _check_rule(self) -> None:
        if self.rule not in (RAY, SYNE_TUNE):
            raise InvalidSpec(f"ASHA's rule is {self.rule!r}; it must be {RAY!r} or {SYNE_TUNE!r}.")
        if self.rule != RAY and self.type != STOPPING:
            raise InvalidSpec(
                f"ASHA's rule is {self.rule!r} and its type {self.type!r}; the rule is for the "
                f"type {STOPPING!r}."
            )

    def _check_end_game(self) -> None:
        can_end = self.type == PROMOTION and self.max_t < STEPS_END
        if self.end_game is None:
            object.__setattr__(self, "end_game", END_GAME if can_end else 0.0)
        elif not 0 <= self.end_game < 1:
            raise InvalidSpec(
                f"ASHA's end_game is {self.end_game}; it must be at least 0 and less than 1."
            )
        elif self.end_game and not can_end:
            raise InvalidSpec(
                f"ASHA's end_game is {self.end_game}; it needs the type {PROMOTION!r} and a max_t "
                "that trials can reach. Leave end_game out."
            )

    @property
    def _most_brackets(self) -> int:
        # Older versions made rungs up to 2**63, and their studies may have a bracket for each rung.
        return len(self._milestones_below(2**63)) + 1  # the last bracket has no rung

    @cached_property
    def _milestones_of_first(self) -> tuple[int, ...]:
        return self._milestones_below(STEPS_END)

    def _milestones_below(self, end: int) -> tuple[int, ...]:
        end = min(self.max_t, end)
        if self.grace_period >= end:
            return ()
        halvings = math.log(end / self.grace_period) / math.log(self.reduction_factor)
        steps = (
            math.ceil(self.grace_period * self.reduction_factor**k)
            for k in range(int(halvings + 1))
        )
        return tuple(sorted({step for step in steps if step < end}))

    def milestones(self, bracket: int = 0) -> tuple[int, ...]:
        """
        Return the steps of a bracket's rungs, ascending, all below `max_t` and below 2**62.

        No trial can reach a later step, and its number might exceed 64 bits.
        """
        if not 0 <= bracket < self.brackets:  # only another program stores such a bracket
            return ()
        return self._milestones_of_first[bracket:]

    @property
    def quantile(self) -> float:
        """The quantile of the negated scores, 0 to 1, computed with Ray Tune's rounding error."""
        return (1 - 1 / self.reduction_factor) * 100 / 100

    def to_json(self) -> dict[str, Any]:
        """
        Return the stored form.

        An option that older versions did not have is left out if its value makes the scheduler do
        what those versions did.
        """
        later = {"brackets": 1, "type": STOPPING, "rule": RAY, **self.absent}
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
        """Return what `next_milestone` does; None for a step that no trial can reach."""
        due = next_milestone(self.milestones(bracket), self.max_t, step)
        return due if due < STEPS_END else None  # a later step might not fit into a message

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """
        Return the rung of the last milestone up to `step`.

        From `max_t` on there is no rung, except with an end game: then a rung at `max_t` counts the
        trials that have reached this step.
        """
        if step >= self.max_t:
            return (RungKey(bracket, self.max_t),) if self._has_end_game else ()
        reached = [milestone for milestone in self.milestones(bracket) if milestone <= step]
        return (RungKey(bracket, reached[-1]),) if reached else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Judge one report against its rung.

        Args:
            report: A lower `score` is better; it is +Inf for NaN.
            view: What was recorded before this report.
        """
        locked = [(key, view.rung(key)) for key in self.locks(report.bracket, report.step)]
        entered = [(key, rung) for key, rung in locked if not rung.entered]
        if report.step >= self.max_t:
            entry = Entry(entered[0][0], report.score) if entered else None
            return Decision(Action.STOP, Reason.COMPLETED, entry)
        return self._judge_at(*entered[0], report) if entered else CONTINUE

    def _judge_at(self, key: RungKey, rung: RungView, report: Report) -> Decision:
        if self.type == PROMOTION:
            if report.is_nan:
                return Decision(Action.STOP, Reason.EARLY_STOPPED, Entry(key, report.score))
            return Decision(Action.PAUSE, Reason.PAUSED, Entry(key, report.score, waits=True))
        entry = Entry(key, report.score)
        cutoff = rung.cutoff if self.rule == RAY else self._worst_that_continues(rung)
        worse = cutoff is not None and report.score > cutoff
        if report.is_nan or worse:
            return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, cutoff)
        return Decision(entry=entry, cutoff=cutoff)

    def _worst_that_continues(self, rung: RungView) -> float | None:
        """
        Return the worst score with which a trial continues by Syne Tune's rule.

        Syne Tune stops a trial if m / n > 1 / reduction_factor: the rung has n scores, the trial's
        own included, and m of them are strictly better. `most` is the largest m that lets a trial
        continue. So a trial stops if the score at the rank `most` (counted from 0) is better than
        the trial's score.

        Returns:
            None if a trial continues with any score.
        """
        n, share = rung.n + 1, 1 / self.reduction_factor
        most = math.floor(n * share) + 1
        while most / n > share:  # rounded like Syne Tune's division
            most -= 1
        if most >= rung.n:
            return None
        return rung.near[min(rung.near, key=lambda rank: abs(rank - most))]

    @property
    def _has_end_game(self) -> bool:
        return bool(self.end_game and self._keys)

    @cached_property
    def _from_highest(self) -> tuple[RungKey, ...]:
        return tuple(sorted(self._keys, key=lambda key: (-key.step, key.bracket)))

    def next_work(self, view: QueueView) -> Work:
        """Resume a trial, or start a new trial; in the end game, start no new trial."""
        if not self.resumes:
            return Idle.START_NEW
        if self._has_end_game and view.spent >= 1 - (self.end_game or 0):
            return next(self._best_first(view), Idle.WAIT)
        promoted = next(self._promotable(view), None)
        if promoted is not None or not self._has_end_game or view.may_start:
            return promoted or Idle.START_NEW
        return next(self._affordable(view), Idle.WAIT)

    def _promotable(self, view: QueueView) -> Iterator[WaitingTrial]:
        for best in self._waiting(view):
            rung = view.rung(best.rung)
            if rung.cutoff is not None and rung.n >= FEWEST_ENTRIES and best.score <= rung.cutoff:
                yield best

    def _waiting(self, view: QueueView) -> Iterator[WaitingTrial]:
        """Yield the best waiting trial of each rung, from the highest step down; leave out +Inf."""
        for key in self._from_highest:
            best = view.best_waiting(key)
            if best is not None and best.score < math.inf:
                yield best

    def _best_first(self, view: QueueView) -> Iterator[WaitingTrial]:
        """Yield the best waiting trial of each rung, the best score first."""
        yield from sorted(self._waiting(view), key=lambda best: best.score)

    def _affordable(self, view: QueueView) -> Iterator[WaitingTrial]:
        """
        Yield the waiting trials that may be resumed when no new trial can be made, one per rung.

        A trial may be resumed if it can be trained up to `max_t` within the share `end_game` of all
        training. A trial may also be resumed if no trial has reached `max_t` or is on its way
        there. No trial is resumed while another is underway to its first rung.
        """
        training = [self._training(bracket, view) for bracket in range(self.brackets)]
        if any(one.is_beginning for one in training):
            return
        most = sum(one.by_promotion for one in training) / (1 - (self.end_game or 0))
        steps, n_last = sum(one.steps for one in training), sum(one.n_last for one in training)
        for best in self._best_first(view):
            if n_last == 0 or steps + self.max_t - best.rung.step <= most:
                yield best

    def _training(self, bracket: int, view: QueueView) -> "_Training":
        due = (*self.milestones(bracket), self.max_t)
        reached = [view.rung(RungKey(bracket, step)).n_entries for step in due]
        lengths = [step - before for before, step in pairwise((0, *due))]
        underway = view.underway(bracket)
        has_rungs = len(due) > 1
        on_way = [step for step in underway if step >= due[0]] if has_rungs else underway
        n_first = reached[0] if has_rungs else reached[0] + len(on_way)
        by_promotion = sum(
            n_first / self.reduction_factor**k * length for k, length in enumerate(lengths)
        )
        trained = (max((one for one in due if one <= step), default=0) for step in on_way)
        left = sum(self.max_t - step for step in trained)
        steps = sum(n * length for n, length in zip(reached, lengths, strict=True)) + left
        is_beginning = len(on_way) < len(underway)
        return _Training(by_promotion, steps, reached[-1] + len(on_way), is_beginning)


class _Training(NamedTuple):
    """
    The training of a bracket's trials, computed from its rungs and its trials underway.

    A trial underway is on its way to `max_t` if it has reached a rung, or if the bracket has no
    rungs.

    Attributes:
        by_promotion: How many steps the trials would train in total without an end game. This is
            estimated as if 1/reduction_factor of the trials at each rung went on.
        steps: The steps that the trials have trained up to rungs. For each trial on its way to
            `max_t`, the steps from its last rung (or from 0) to `max_t` are added.
        n_last: How many trials have reached `max_t` or are on their way there.
        is_beginning: Whether a trial underway is still below the first rung; False without rungs.
    """

    by_promotion: float
    steps: int
    n_last: int
    is_beginning: bool
