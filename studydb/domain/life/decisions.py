"""What a scheduler decides, and the verdict that waits to be carried out."""

from dataclasses import dataclass, field
from enum import StrEnum

from studydb.domain.life.states import Reason
from studydb.domain.metrics import Summary


class Action(StrEnum):
    """What is to become of the attempt that reported."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"
    PAUSE = "PAUSE"
    EXPLOIT = "EXPLOIT"


class DecidedBy(StrEnum):
    """Who has decided, and so who may wake what was paused."""

    SCHEDULER = "scheduler"
    RULE = "rule"
    PERSON = "person"
    """By a request for this trial."""
    STUDY = "study"
    """By a request for the whole study."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    A decision that waits to be carried out, stored on the still RUNNING trial.

    Attributes:
        action: STOP, PAUSE or EXPLOIT.
        reason: What the attempt's and the trial's `reason` will say.
    """

    action: Action
    reason: Reason
    by: DecidedBy

    @property
    def refuses_results(self) -> bool:
        """
        Whether results that come after it are dropped.

        True for decisions of schedulers and rules. A person's request may arrive in the middle of
        a step and must not discard its result or skip a rung.
        """
        return self.by in (DecidedBy.SCHEDULER, DecidedBy.RULE)


@dataclass(frozen=True, slots=True)
class Decision:
    """
    A scheduler's answer to one report.

    Attributes:
        action: What is to become of the attempt.
        reason: Why, when it is to end.
        rung_step: The rung at which the report is to be recorded, None for none.
        cutoff: What the score was held against (oriented, lower is better), for `show`.
    """

    action: Action = Action.CONTINUE
    reason: Reason | None = None
    rung_step: int | None = None
    cutoff: float | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that this decision stores, None to go on."""
        if self.action is Action.CONTINUE or self.reason is None:
            return None
        return Verdict(self.action, self.reason, DecidedBy.SCHEDULER)


CONTINUE = Decision()


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a flush tells the attempt that sent it.

    Attributes:
        verdict: None to go on; else the attempt may save a last checkpoint and must finish.
        next_decision_step: The step at which the scheduler judges next; None for never.
        summary: The trial's after this flush, None if it was not read; the same answer without it.
    """

    verdict: Verdict | None = None
    next_decision_step: int | None = None
    summary: Summary | None = field(default=None, compare=False)
