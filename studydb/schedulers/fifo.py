"""FIFO: every trial runs to its end, in the order of their numbers."""

from dataclasses import dataclass

from studydb.domain.life.decisions import CONTINUE, Decision
from studydb.domain.specs.spec import Spec
from studydb.domain.view import Report, RungSpec, StudyView


@dataclass(frozen=True)
class FIFO(Spec):
    """Judge nothing: a trial ends by a stop rule or when its function returns."""

    def rungs(self) -> tuple[RungSpec, ...]:
        """No rungs."""
        return ()

    def rung_of(self, step: int) -> int | None:  # noqa: ARG002
        """No rung."""
        return None

    def next_decision_step(self, step: int) -> int | None:  # noqa: ARG002
        """Never."""
        return None

    def judge(self, report: Report, view: StudyView) -> Decision:  # noqa: ARG002
        """Go on."""
        return CONTINUE
