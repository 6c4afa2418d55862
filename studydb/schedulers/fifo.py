"""FIFO: every trial runs to its end, in the order of their numbers."""

from dataclasses import dataclass
from typing import Any

from studydb.domain.life.decisions import CONTINUE, Decision
from studydb.domain.view import Report, RungSpec, StudyView


@dataclass(frozen=True, slots=True)
class FIFO:
    """Judges nothing; trials end by their own rules or by themselves."""

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row."""
        return {"name": "FIFO"}

    def rungs(self) -> tuple[RungSpec, ...]:
        """None."""
        return ()

    def rung_of(self, step: int) -> int | None:  # noqa: ARG002
        """None."""
        return None

    def next_decision_step(self, step: int) -> int | None:  # noqa: ARG002
        """Never."""
        return None

    def judge(self, report: Report, view: StudyView) -> Decision:  # noqa: ARG002
        """Go on."""
        return CONTINUE
