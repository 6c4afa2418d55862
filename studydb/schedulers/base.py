"""The base of schedulers; it stops and pauses no trial."""

from collections.abc import Sequence
from dataclasses import dataclass

from studydb.domain.life.decisions import CONTINUE, Decision, RungKey
from studydb.domain.scheduling import Idle, QueueView, Report, RungSpec, StudyView, Work
from studydb.domain.specs.spec import Spec


def next_milestone(milestones: Sequence[int], max_t: int, step: int) -> int:
    """
    Return the next milestone after `step`; after the last, `max_t`.

    From `max_t` on, the next step is returned: a trial that begins from a checkpoint of such a step
    is complete at its first report.
    """
    return next((due for due in (*milestones, max_t) if due > step), step + 1)


@dataclass(frozen=True)
class BaseScheduler(Spec):
    """Has no rungs, one bracket and no decision steps; a subclass overrides what it needs."""

    @property
    def resumes(self) -> bool:
        return False

    @property
    def needs_budget(self) -> bool:
        return False

    @property
    def closes_rungs(self) -> bool:
        return False

    @property
    def reads_best(self) -> int:
        return 0

    @property
    def mean_from(self) -> int | None:
        return None

    @property
    def quantile(self) -> float:
        """From 0 to 1: the cutoff of a rung lies at this quantile of the rung's negated scores."""
        return 0.5

    def rungs(self) -> Sequence[RungSpec]:
        return ()

    def rung_spec(self, key: RungKey) -> RungSpec:
        return RungSpec(key, self.quantile)

    def bracket_of(self, *, seed: int, draw: int) -> int:  # noqa: ARG002
        return 0

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        return None

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:  # noqa: ARG002
        return ()

    def judge(self, report: Report, view: StudyView) -> Decision:  # noqa: ARG002
        return CONTINUE

    def next_work(self, view: QueueView) -> Work:  # noqa: ARG002
        return Idle.START_NEW
