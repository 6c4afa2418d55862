"""The small window through which a scheduler sees its study."""

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
        quantile: In [0, 1], of the negated scores; the rung keeps its cutoff there.
    """

    bracket: int
    step: int
    quantile: float


@dataclass(frozen=True, slots=True)
class RungView:
    """
    A rung as it was before the report that is being judged.

    Attributes:
        n: Recorded entries that are not NaN.
        cutoff: The interpolated quantile as a score (lower is better); None while empty.
        entered: Whether the reporting trial has an entry already.
    """

    n: int
    cutoff: float | None
    entered: bool


class StudyView(Protocol):
    """Reads what was recorded before this report, inside its transaction."""

    def rung(self, step: int) -> RungView:
        """The rung at that milestone in the reporting trial's bracket."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a scheduler is asked to judge.

    Attributes:
        step: `training_iteration` of the result.
        score: Oriented: lower is better, NaN arrives as +Inf.
        is_nan: Whether the value was NaN.
        bracket: The trial's bracket.
    """

    step: int
    score: float
    is_nan: bool
    bracket: int


class Scheduler(Protocol):
    """Judges trials; pure, frozen, knows no SQL."""

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row; `schedulers.read` reads it."""

    def rungs(self) -> tuple[RungSpec, ...]:
        """The rungs that `create` makes rows for."""

    def rung_of(self, step: int) -> int | None:
        """The milestone that a trial at this step has reached last, None before the first."""

    def next_decision_step(self, step: int) -> int | None:
        """The first step after `step` at which this scheduler wants to judge; None for never."""

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Judge one report."""


class Searcher(Protocol):
    """Proposes configurations; frozen and pure. The n-th point is the same whoever samples it."""

    @property
    def origin(self) -> Origin:
        """What `trial.origin` says of its points."""

    @property
    def seed(self) -> int | None:
        """What the study's seed shall be; None to choose one."""

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row; `searchers.read` reads it."""

    def size(self, space: Space) -> int | None:
        """How many points there are; None for endless."""

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """The `draw`-th point (0-based): nested params, without the space's constants."""
