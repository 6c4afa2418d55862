"""Rows that people read in lists, summaries, frames and the stable views (`v_study`, …)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from studydb.domain.life.states import Reason, State

Tags = tuple[str, ...]


class ListedStudy(NamedTuple):
    """A row of `v_study`."""

    study: str
    status: str
    metric: str
    mode: str
    num_trials: int | None
    max_concurrent: int | None
    pending: int
    running: int
    paused: int
    terminated: int
    error: int
    created_at: datetime

    @property
    def n_trials(self) -> int:
        """The number of the study's trials, in any state."""
        return self.pending + self.running + self.paused + self.terminated + self.error


class ListedTrial(NamedTuple):
    """
    A row of `v_trial`.

    Attributes:
        duration_s: The durations of the trial's attempts, added up; a running attempt counts up to
            now. None if the trial has no attempt.
        changed: The values that a person has changed, by path: later attempts get these instead of
            the values in `params`.
        parent: The number of the trial of which this trial is a clone.
        resources: The amounts that the trial asks for; None if no trial of the study asks for any.
    """

    study: str
    number: int
    state: str
    reason: str | None
    params: Mapping[str, Any]
    value: float | None
    best_value: float | None
    best_step: int | None
    last_step: int | None
    attempt: int
    failures: int
    losses: int
    started_at: datetime | None
    ended_at: datetime | None
    duration_s: float | None
    name: str | None
    tags: Tags
    changed: Mapping[str, Any] | None
    parent: int | None
    invalidated_at: datetime | None
    resources: Mapping[str, Any] | None


class ListedResult(NamedTuple):
    """A row of `v_result`: a live result; `metrics` contains the study's metric."""

    study: str
    number: int
    step: int
    value: float
    metrics: Mapping[str, Any]
    attempt: int
    reported_at: datetime


class ListedAttempt(NamedTuple):
    """A row of `v_attempt`."""

    study: str
    number: int
    attempt: int
    reason: str | None
    start_step: int
    host: str | None
    pid: int | None
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    duration_s: float | None
    error_type: str | None
    error_message: str | None
    start: str | None
    start_s: float | None


class ListedWorker(NamedTuple):
    """
    A row of `v_worker`.

    Attributes:
        resources: The amounts that the worker offers; an amount without a limit is left out. None
            for an own loop (`study.ask`) that was given no capacity: every trial fits.
        uses: The amounts that the worker's RUNNING trials hold; None if they hold none.
        tags: The worker's tags; a study can require tags of its workers.
        reserved_for: The number of a trial that fits what the worker offers, but has waited longer
            than `--reserve-after` because other trials hold amounts that this trial needs. Until
            this trial has started, the worker starts no other trial that would delay it. None if
            the worker is not reserved.
    """

    worker: str
    study: str
    host: str
    pid: int
    slots: int
    running: int
    request: str | None
    version: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    resources: Mapping[str, Any] | None
    uses: Mapping[str, Any] | None
    tags: Tags
    reserved_for: int | None


class PagedResult(NamedTuple):
    """A live result, read for a data frame; `metrics` does not contain the study's metric."""

    number: int
    step: int
    value: float
    metrics: Mapping[str, Any] | None
    attempt: int
    reported_at: datetime
    trial_id: int
    invalidated_at: datetime | None


class RecentEnds(NamedTuple):
    """
    How the newest trials of a study ended.

    Attributes:
        read: How many trials were read.
        ended: How many of these trials have ended, for any reason.
        stopped_early: How many of these trials the scheduler or a stop rule has stopped.
        at_limit: How many of these trials a limit has ended: a limit of the study, or the trial's
            time limit.
        invalidated: How many of these trials were invalidated before they had ended.
        began_at: When the first of these trials began; None if no trial has begun.
        last_end_at: When the last of these trials ended; None if no trial has ended.
    """

    read: int
    ended: int
    completed: int
    stopped_early: int
    given_up: int
    cancelled: int
    at_limit: int
    invalidated: int
    began_at: datetime | None
    last_end_at: datetime | None


class Unranked(NamedTuple):
    """
    Which values the trials of a study have, none of which has a rank.

    Attributes:
        has_nan: Whether one of the newest trials has reported values, all of which are NaN.
        has_invalidated: Whether a trial that has reported another value than NaN is invalidated.
    """

    has_nan: bool = False
    has_invalidated: bool = False


class StudyProblem(NamedTuple):
    """
    The newest event of one kind of trouble, such as a checkpoint that was not stored.

    Attributes:
        number: The trial's number; None if the problem concerns the whole study.
        times: How many of the study's newest 2,000 events are of this kind.
    """

    kind: str
    at: datetime
    times: int
    number: int | None
    attempt: int | None
    data: Any


MOST_COUNTED = 10_000
"""
At most this many entries of a rung are counted for `Judgement.rank` or `ListedRung.waiting`; a rung
can have a million.
"""

MOST_JUDGED = 100
"""At most this many of a trial's last judgements are shown; a trial can have one per step."""


class Judgement(NamedTuple):
    """
    How a scheduler judged a trial at one rung.

    Attributes:
        rung: The step of the rung.
        step, value: The judged result's step, and its value of the study's metric.
        cutoff: The value that the result had to reach; None if the rung had no cutoff.
        rank: The present rank of the trial's entry at the rung; 1 is the best. None if the value is
            NaN, the trial is invalidated or a clone runs in its place. 10,001 stands for every rank
            after 10,000.
        n_ranked: The number of entries at the rung that have a rank.
        promoted_at: When the trial was promoted from the rung; None if it was not.
        kept: Whether the trial was kept when the rung closed; None if the rung is open, or if the
            trial has not waited there.
        why: The reason that a custom scheduler gave; None if it gave none.
    """

    rung: int
    step: int
    value: float
    cutoff: float | None
    action: str
    bracket: int = 0
    rank: int | None = None
    n_ranked: int = 0
    promoted_at: datetime | None = None
    kept: bool | None = None
    why: str | None = None


class LastDecision(NamedTuple):
    """
    What the scheduler last did with a trial: it stopped, paused, promoted or gave up the trial.

    Attributes:
        number, state, reason: The trial's number, its state, and why it ended.
        judged: How the trial was judged at its last rung; for a promoted trial, at the last rung
            from which it was promoted.
    """

    number: int
    state: State
    reason: Reason | None
    judged: Judgement


class ListedRung(NamedTuple):
    """
    A rung as it is now.

    Attributes:
        entries: How many trials have entered the rung.
        ranked: How many of these have a rank: their value is not NaN, they are not invalidated, and
            no clone runs in their place.
        waiting: How many trials wait at the rung to go on; at most 10,000 are counted.
        top: The share of the ranked trials that reach `cutoff`, such as 0.25; None if the scheduler
            decides only when the rung closes.
        cutoff: The value by which the scheduler decides, except that ASHA with the rule "syne_tune"
            compares ranks; None if `top` is None or no entry has a rank.
        best: The best value; None if no entry has a rank.
        kept: The worst value that was kept when the rung closed; None if the rung is open or has
            kept no trial.
    """

    bracket: int
    step: int
    entries: int
    ranked: int
    waiting: int
    top: float | None
    cutoff: float | None
    best: float | None
    kept: float | None
    closed_at: datetime | None


class ListedCheckpoint(NamedTuple):
    """
    A checkpoint that is kept.

    Attributes:
        number: The trial's number.
        value: The value of the study's metric at `step`; None if no result has this step.
        pins: How many pins keep the checkpoint, for trials that begin from it and for people.
    """

    number: int
    step: int
    value: float | None
    size_bytes: int
    kind: str
    attempt: int
    pins: int
    created_at: datetime
    url: str
    digest: str


class CheckpointSizes(NamedTuple):
    """
    The number and the total size of the kept checkpoints of some trials, for one host.

    There is a row for each host, and a separate row for the checkpoints that people have uploaded.

    Attributes:
        host: The host of the workers that saved the checkpoints. None for checkpoints that people
            have uploaded, and for those whose worker has no row.
        is_uploaded: Whether people have uploaded the checkpoints, for trials to begin from them.
    """

    host: str | None
    n: int
    size_bytes: int
    is_uploaded: bool = False


class ListedNote(NamedTuple):
    """A person's note on a study or a trial."""

    at: datetime
    author: str
    text: str


class AttemptDetails(NamedTuple):
    """
    An attempt's row, with columns that `v_attempt` does not show.

    `AttemptProcess` describes `log_dir`, `log_tail` and `provenance`; there, `provenance` has the
    name `code`.
    """

    trial_id: int
    attempt: int
    token: str
    config: Mapping[str, Any]
    reason: str | None
    verdict_by: str | None
    ended_at: datetime | None
    error_type: str | None
    error_message: str | None
    traceback: str | None
    log_dir: str | None
    log_tail: str | None
    provenance: Mapping[str, str] | None
