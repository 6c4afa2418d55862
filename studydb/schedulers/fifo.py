"""FIFO: every trial runs to its end; no trial is stopped by a comparison with others."""

from dataclasses import dataclass

from studydb.domain.life.decisions import CONTINUE, Decision
from studydb.domain.specs.spec import Spec
from studydb.domain.view import Report, RungSpec, StudyView


@dataclass(frozen=True)
class FIFO(Spec):
    """Stop no trial: a trial ends by a stop rule or when its function returns."""

    def rungs(self) -> tuple[RungSpec, ...]:
        return ()

    def rung_of(self, step: int) -> int | None:  # noqa: ARG002
        return None

    def next_decision_step(self, step: int) -> int | None:  # noqa: ARG002
        return None

    def judge(self, report: Report, view: StudyView) -> Decision:  # noqa: ARG002
        return CONTINUE
