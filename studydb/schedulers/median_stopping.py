"""
The median stopping rule.

Source: Golovin et al., "Google Vizier" (KDD 2017), in the form of Ray Tune's `MedianStoppingRule`:
the best value of a trial is compared with the median of the other trials' running means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Report, RungView, StudyView
from studydb.domain.specs.spec import suggesting_options
from studydb.schedulers.base import BaseScheduler


@suggesting_options
@dataclass(frozen=True)
class MedianStopping(BaseScheduler):
    """
    Stop a trial whose best value is worse than the median of the other trials' running means.

    A running mean is the mean of a trial's values from step `grace_period` to the judged step. The
    median is computed from the means of the trials that were judged at the same step earlier. Means
    that are not finite do not count. A trial that is not stopped ends when its function returns, or
    by a stop rule.

    A trial is judged at the multiples of `interval` from `grace_period` on. Each judgement costs a
    transaction with a few statements; reports of other steps can be sent in batches.

    Attributes:
        grace_period: The first step that can be judged.
        min_samples: A trial is stopped or paused only if at least this many other trials have a
            mean at the judged step.
        interval: The number of steps between two judgements.
        hard_stop: Whether a trial that is worse than the median ends. If False, the trial is
            paused until a person resumes it, and is then judged again at the next multiple of
            `interval`. Ray Tune resumes such a trial when all other trials have ended, and does not
            judge it again.
    """

    grace_period: int = 1
    min_samples: int = 3
    interval: int = 1
    hard_stop: bool = True

    def _check(self) -> None:
        for name in ("grace_period", "min_samples", "interval"):
            if getattr(self, name) < 1:
                raise InvalidSpec(
                    f"MedianStopping's {name} is {getattr(self, name)}; it must be at least 1."
                )

    @property
    def mean_from(self) -> int | None:
        return self.grace_period

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        """Return the first multiple of `interval` after `step`, from `grace_period` on."""
        due = max(self.grace_period, step + 1)
        return -(-due // self.interval) * self.interval

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """
        Return the rung at the last multiple of `interval` up to `step`.

        Returns:
            () if this multiple is below `grace_period`.
        """
        milestone = step // self.interval * self.interval
        return (RungKey(bracket, milestone),) if milestone >= self.grace_period else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Compare the trial's best score with the median of the means that the rung holds.

        Args:
            report: The report to judge.
            view: The rung is as it was before the report; `mean` and `best_score` include the
                report.
        """
        for key in self.locks(report.bracket, report.step):
            rung = view.rung(key)
            if not rung.entered:
                return self._judge_at(key, rung, view)
        return CONTINUE

    def _judge_at(self, key: RungKey, rung: RungView, view: StudyView) -> Decision:
        mean = view.mean()
        entry = Entry(key, mean) if math.isfinite(mean) else None
        median = _median(rung) if rung.n >= self.min_samples else None
        if median is None or view.best_score() <= median:
            return Decision(entry=entry, cutoff=median)
        if self.hard_stop:
            return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, median)
        return Decision(Action.PAUSE, Reason.PAUSED, entry, median)


def _median(rung: RungView) -> float:
    """Return the median, rounded exactly as numpy rounds it."""
    better, worse = rung.near[(rung.n - 1) // 2], rung.near[rung.n // 2]
    return better if better == worse else (better + worse) / 2
