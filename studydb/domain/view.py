"""What schedulers and searchers are given, and what they must have: their protocols."""

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
        bracket: 0-based.
        step: The milestone (`training_iteration`).
        quantile: In [0, 1], of the negated scores; the rung's cutoff is this quantile.
    """

    bracket: int
    step: int
    quantile: float


@dataclass(frozen=True, slots=True)
class RungView:
    """
    A rung before the report that is being judged.

    Attributes:
        n: The number of entries that are not NaN.
        cutoff: The interpolated quantile as a score (lower is better); None without entries.
        entered: Whether the reporting trial has an entry already.
    """

    n: int
    cutoff: float | None
    entered: bool


class StudyView(Protocol):
    """The study before this report, read in the report's transaction."""

    def rung(self, step: int) -> RungView:
        """The rung at a milestone, in the reporting trial's bracket."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    A result as a scheduler judges it.

    Attributes:
        step: `training_iteration` of the result.
        score: Lower is better, in both modes; +Inf for NaN.
        is_nan: Whether the value was NaN.
        bracket: The trial's bracket.
    """

    step: int
    score: float
    is_nan: bool
    bracket: int


class Scheduler(Protocol):
    """Judges trials; frozen, without SQL."""

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row; `schedulers.read` reads it."""

    def rungs(self) -> tuple[RungSpec, ...]:
        """The rungs that `create` makes rows for."""

    def rung_of(self, step: int) -> int | None:
        """The last milestone that a trial at this step has reached, None before the first."""

    def next_decision_step(self, step: int) -> int | None:
        """The first step after `step` at which this scheduler wants to judge; None for never."""

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Judge one report."""


class Searcher(Protocol):
    """Proposes configurations; frozen. The n-th point is the same in every process."""

    @property
    def origin(self) -> Origin:
        """The `origin` of its trials."""

    @property
    def seed(self) -> int | None:
        """The seed of studies created with it; None to let each choose one."""

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row; `searchers.read` reads it."""

    def size(self, space: Space) -> int | None:
        """The number of points; None for no limit."""

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """The `draw`-th point (0-based): nested params, without the space's constants."""
