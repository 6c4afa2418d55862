"""
The contract of schedulers: what they read, what they lock, and what they decide.

A scheduler is pure and frozen. An operation calls it, and stores what it decides. All that a
scheduler is given and all that it returns is plain data. Scores are oriented: a lower score is
better in both modes, and NaN is +Inf. `docs/schedulers.md` says how to write a scheduler.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from studydb.domain.life.decisions import Decision, RungKey
from studydb.domain.metrics import STEPS_END

ENQUEUED_DRAWS = 2**32
"""
The enqueued trial with the number N takes its missing params from the draw 2**32 + N. The draws of
trials that are not enqueued are lower.
"""


class RungSpec(Struct, frozen=True):
    """
    A rung that a scheduler needs.

    Attributes:
        key: The rung's bracket, and its milestone (`training_iteration`).
        quantile: Where the cutoff lies, in [0, 1]; with 0.75, about a quarter of the entries that
            rank are at least as good as the cutoff.
    """

    key: RungKey
    quantile: float


class RungView(Struct, frozen=True):
    """
    A rung as it is before the decision.

    Attributes:
        n: The number of entries that rank: all except those with NaN, those of invalidated trials,
            and those of trials in whose place a clone runs.
        cutoff: The interpolated quantile as a score; None if no entry ranks.
        entered: Whether the reporting trial has an entry already.
        n_entries: The number of all entries.
        is_closed: Whether a `Close` of the rung has been carried out.
        closed_cutoff: The worst score that was kept when the rung closed; None if none was kept, or
            if the rung is open.
        near: The scores of the rung's cut (the worse of the two entries around the quantile) and of
            the entries beside it, by their ranks among the entries that rank; rank 0 is the best.
            Only `judge` gets these scores.
    """

    n: int
    cutoff: float | None
    entered: bool = False
    n_entries: int = 0
    is_closed: bool = False
    closed_cutoff: float | None = None
    near: Mapping[int, float] = field(default_factory=dict)


class Ranked(NamedTuple):
    """
    An entry of a rung, with what another trial needs to continue from the entry's trial.

    Attributes:
        checkpoint_id: The trial's checkpoint at the step of the entry; None if there is none.
        config: The config of the trial; its params if the trial was made by a version of studydb
            that stored no configs.
    """

    trial_id: int
    score: float
    checkpoint_id: int | None = None
    config: Mapping[str, Any] | None = None


class WaitingTrial(NamedTuple):
    """A PAUSED trial that waits at a rung. A free worker may resume this trial."""

    rung: RungKey
    trial_id: int
    score: float


class Close(NamedTuple):
    """
    A rung closes: the best `keep` of the trials that wait there may be resumed.

    A trial that a person has paused takes one of the `keep` places only if fewer than `keep` other
    trials wait. Once the person resumes this trial, it goes on if it is not worse than the worst
    trial that has a place. The trials that are not kept end as GIVEN_UP, later and at most 100 at a
    time. A rung closes only once. A negative `keep` counts as 0; if a custom scheduler returns a
    negative `keep`, the study is paused. A `Close` of a rung without entries, or of a closed rung,
    counts as `Idle.WAIT`.
    """

    rung: RungKey
    keep: int


class Idle(StrEnum):
    """What a free worker does if the scheduler names no trial and closes no rung."""

    START_NEW = "start new"
    """The worker makes a new trial if the budget allows it."""
    WAIT = "wait"
    """The worker makes no trial, although the budget may allow it."""


Work = WaitingTrial | Close | Idle
"""What a free worker does if it finds no trial to claim."""


class StudyView(Protocol):
    """
    What `judge` may read, in the report's transaction.

    Rungs are shown as they were before the report; `mean` and `best_score` include the report.
    """

    def rung(self, key: RungKey) -> RungView:
        """Return a rung that `Scheduler.locks` names."""

    def best(self, key: RungKey, n: int) -> Sequence[Ranked]:
        """
        Return the best entries of a rung that `Scheduler.locks` names, best first.

        Args:
            n: How many entries to return; at most `Scheduler.reads_best`. Each entry costs a
                look-up.
        """

    def mean(self) -> float:
        """
        Return the score of the mean of the reporting trial's values, this report included.

        Values before the step `Scheduler.mean_from` do not count.
        """

    def best_score(self) -> float:
        """Return the best score of the reporting trial, this report included."""


class TrialCanBeClaimed(Exception):
    """
    A free worker has a trial to claim, so the scheduler need not name work.

    `QueueView.underway` raises this exception instead of listing the trials underway: thousands of
    enqueued trials may be PENDING, and the worker claims a PENDING trial anyway.
    """


class QueueView(Protocol):
    """What `next_work` may read: a snapshot of the study's rungs, trials and budget; no locks."""

    @property
    def next_draw(self) -> int:
        """The draw of the next new trial: each lower draw has a trial, or was skipped."""

    @property
    def may_start(self) -> bool:
        """Whether `num_trials` and the searcher allow a new trial, whatever the study's status."""

    @property
    def spent(self) -> float:
        """
        The spent share of the study's most spent limit, from 0 to 1; 0 without a limit.

        The limits are `max_steps`, `cost_limit`, `total_time_limit_s` and `time_limit_s`.
        """

    def rungs(self) -> Sequence[RungKey]:
        """
        Return, in ascending order, the rungs that are open, or at which trials still wait.

        A rung that no trial has entered is left out.
        """

    def rung(self, key: RungKey) -> RungView:
        """
        Return a rung, also if it is closed and no trial waits there any more.

        A rung that no trial has reached has no entries.
        """

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        """
        Return the best trial that waits at a rung; None if none waits.

        Of trials with equal scores, the one that reported first is the best. At a closed rung, only
        trials that are kept count. Trials that a person paused, and trials that do not fit the
        asking worker, never count.
        """

    def underway(self, bracket: int) -> Sequence[int]:
        """
        Return the last step of each trial of a bracket that is underway.

        A trial is underway if it is RUNNING, or if workers can claim it later: it is in back-off,
        paused with the study, or waits for a live worker with other resources. If more than 1,000
        trials wait for other workers, some of them may be left out, and a step 0 is added.

        A trial that a person has paused is left out, so that no rung waits for this person.

        Raises:
            TrialCanBeClaimed: A worker can claim a trial. Do not catch this exception: the worker
                claims the trial, and the scheduler is asked again when there is nothing to claim.
        """


class Report(Struct, frozen=True):
    """
    A result as a scheduler judges it.

    Attributes:
        step: The result's `training_iteration`.
        score: The value as a score: lower is better in both modes, and NaN becomes +Inf.
        is_nan: Whether the value is NaN.
        bracket: The trial's bracket.
        trial_id: The trial's id, the same as in `Ranked`.
        seed: The trial's seed, from which a scheduler's random numbers come.
    """

    step: int
    score: float
    is_nan: bool
    bracket: int
    trial_id: int = 0
    seed: int = 0


class Scheduler(Protocol):
    """Decides which trials go on; frozen, without SQL."""

    @property
    def resumes(self) -> bool:
        """Whether trials wait at rungs, so that free workers ask `next_work`."""

    @property
    def needs_budget(self) -> bool:
        """
        Whether the scheduler resumes trials only after a part of a budget is spent.

        If so, a study needs `num_trials`, a limit that ends the study, or a searcher with a limited
        number of points.
        """

    @property
    def closes_rungs(self) -> bool:
        """Whether trials go on only when their rung closes, so that no cutoff decides."""

    @property
    def reads_best(self) -> int:
        """The most entries of a rung that `judge` reads by `StudyView.best`."""

    @property
    def mean_from(self) -> int | None:
        """The first step that counts in `StudyView.mean`; None if `judge` reads no mean."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `schedulers.read` reads it."""

    def rungs(self) -> Sequence[RungSpec]:
        """Return the rungs that are made with the study; others are made when trials reach them."""

    def rung_spec(self, key: RungKey) -> RungSpec:
        """Return the spec of a rung that `locks` names."""

    def bracket_of(self, *, seed: int, draw: int) -> int:
        """
        Return the bracket of a new trial, the same in every process.

        Args:
            seed: The study's seed.
            draw: The draw of the trial's params; `ENQUEUED_DRAWS` + number for an enqueued trial.
        """

    def next_decision_step(self, bracket: int, step: int) -> int | None:
        """Return the first step after `step` that needs a decision; None if there is none."""

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """Return the rungs that the judgement of a report at `step` reads or writes."""

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Judge one report; the caller has locked the rungs that `locks` returned."""

    def next_work(self, view: QueueView) -> Work:
        """
        Return what a worker does if it finds no trial to claim. The caller holds no locks.

        The view is up to date: a trial that has ended, for any reason, is not underway in it.
        """


def last_step(scheduler: Scheduler) -> int | None:
    """Return a scheduler's `max_t`; None if it has none, or if no trial can reach this step."""
    max_t = getattr(scheduler, "max_t", None)
    return max_t if max_t is not None and max_t < STEPS_END else None
