"""The base of schedulers: without further methods, every trial runs to its end."""

from collections.abc import Sequence
from dataclasses import dataclass

from studydb.domain.life.decisions import CONTINUE, Decision, RungKey
from studydb.domain.scheduling import QueueView, Report, RungSpec, StudyView, WaitingTrial
from studydb.domain.specs.spec import Spec


@dataclass(frozen=True)
class BaseScheduler(Spec):
    """Has no rungs, one bracket and no decisions; a scheduler overrides what it needs."""

    def rungs(self) -> Sequence[RungSpec]:
        return ()

    def bracket_of(self, *, seed: int, draw: int) -> int:  # noqa: ARG002
        return 0

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        return None

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:  # noqa: ARG002
        return ()

    def judge(self, report: Report, view: StudyView) -> Decision:  # noqa: ARG002
        return CONTINUE

    def promotes_from(self) -> Sequence[RungKey]:
        return ()

    def next_work(self, view: QueueView) -> WaitingTrial | None:  # noqa: ARG002
        return None
