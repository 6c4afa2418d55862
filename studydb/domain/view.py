"""The protocols of schedulers and searchers, and the records that they are given."""

from dataclasses import dataclass
from typing import Any, Protocol

from studydb.domain.life.decisions import Decision
from studydb.domain.life.states import Origin
from studydb.domain.space.search_space import Space


@dataclass(frozen=True, slots=True)
class RungSpec:
    """
    A rung that a scheduler needs.

    Attributes:
        bracket: The 0-based number of the rung's bracket.
        step: The rung's milestone (`training_iteration`).
        quantile: The cutoff's quantile among the negated scores, in [0, 1].
    """

    bracket: int
    step: int
    quantile: float


@dataclass(frozen=True, slots=True)
class RungView:
    """
    A rung as it was before the report that is being judged.

    Attributes:
        n: The number of entries that are not NaN.
        cutoff: The interpolated quantile as a score (lower is better); None without entries.
        entered: Whether the reporting trial has an entry already.
    """

    n: int
    cutoff: float | None
    entered: bool


class StudyView(Protocol):
    """The study as it was before the judged report, read in the report's transaction."""

    def rung(self, step: int) -> RungView:
        """Return the rung at a milestone, in the reporting trial's bracket."""


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
    """Judges trials; frozen, without SQL."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `schedulers.read` reads it."""

    def rungs(self) -> tuple[RungSpec, ...]:
        """Return the rungs; a new study gets a row for each rung."""

    def rung_of(self, step: int) -> int | None:
        """Return the last milestone up to `step`; None if there is none."""

    def next_decision_step(self, step: int) -> int | None:
        """Return the first step after `step` that needs a decision; None if there is none."""

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Judge one report."""


class Searcher(Protocol):
    """Proposes configurations; frozen. The n-th point is the same in every process."""

    @property
    def origin(self) -> Origin:
        """The `origin` of the trials that this searcher proposes."""

    @property
    def seed(self) -> int | None:
        """The seed for studies created with this searcher; None for a random seed per study."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `searchers.read` reads it."""

    def size(self, space: Space) -> int | None:
        """Return the number of points; None for no limit."""

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """Return the `draw`-th point (0-based): nested params without the space's constants."""
