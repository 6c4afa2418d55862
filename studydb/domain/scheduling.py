"""
The contract of schedulers: what they read, what they lock, and what they decide.

A scheduler is pure and frozen. Operations call it in their transactions, under the locks that it
names, and store what it decides. Scores are oriented: a lower score is better in both modes, and
NaN is +Inf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from studydb.domain.life.decisions import Decision, RungKey


@dataclass(frozen=True, slots=True)
class RungSpec:
    """
    A rung that a scheduler needs.

    Attributes:
        key: The rung's bracket, and its milestone (`training_iteration`).
        quantile: The quantile of the negated scores at which the cutoff lies, in [0, 1].
    """

    key: RungKey
    quantile: float


@dataclass(frozen=True, slots=True)
class RungView:
    """
    A rung as it is before the decision.

    Attributes:
        n: The number of entries that are not NaN.
        cutoff: The interpolated quantile as a score; None without entries.
        entered: Whether the reporting trial has an entry already.
    """

    n: int
    cutoff: float | None
    entered: bool = False


class WaitingTrial(NamedTuple):
    """A PAUSED trial that may be promoted from a rung."""

    rung: RungKey
    trial_id: int
    score: float


class StudyView(Protocol):
    """The study as it was before the judged report, read in the report's transaction."""

    def rung(self, key: RungKey) -> RungView:
        """Return a rung that `Scheduler.locks` names."""


class QueueView(Protocol):
    """The rungs at which trials wait, as one statement reads them, without locks."""

    def rung(self, key: RungKey) -> RungView:
        """Return a rung that `Scheduler.promotes_from` names."""

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        """Return the best trial that waits; of equal trials, the one that reported first."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    A result as a scheduler judges it.

    Attributes:
        step: The result's `training_iteration`.
        score: The value as a score: lower is better in both modes, and NaN becomes +Inf.
        is_nan: Whether the value is NaN.
        bracket: The trial's bracket.
    """

    step: int
    score: float
    is_nan: bool
    bracket: int


class Scheduler(Protocol):
    """Decides which trials go on; frozen, without SQL."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `schedulers.read` reads it."""

    def rungs(self) -> Sequence[RungSpec]:
        """Return the rungs; creating a study makes a row for each."""

    def bracket_of(self, *, seed: int, draw: int) -> int:
        """
        Return the bracket of a new trial, the same in every process.

        Args:
            seed: The study's seed.
            draw: The draw of the trial's params; for an enqueued trial, a number above all draws.
        """

    def next_decision_step(self, bracket: int, step: int) -> int | None:
        """Return the first step after `step` that needs a decision; None if there is none."""

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        """Return the rungs that the judgement of a report at `step` reads or writes."""

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Judge one report, with the rungs that `locks` names locked."""

    def promotes_from(self) -> Sequence[RungKey]:
        """Return the rungs at which trials wait; empty if this scheduler pauses no trial."""

    def next_work(self, view: QueueView) -> WaitingTrial | None:
        """Return the trial that a free worker resumes; None to start a new trial."""
