"""A scheduler's decision, and the verdict: a decision to stop or pause, stored on the trial."""

from dataclasses import dataclass, field
from enum import StrEnum

from studydb.domain.life.states import Reason
from studydb.domain.metrics import Summary


class Action(StrEnum):
    """What an attempt must do after its report."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"
    PAUSE = "PAUSE"
    EXPLOIT = "EXPLOIT"


class DecidedBy(StrEnum):
    """Who decided that an attempt ends, or who paused a trial or study."""

    SCHEDULER = "scheduler"
    RULE = "rule"
    PERSON = "person"
    """By a request for this trial."""
    STUDY = "study"
    """By a request for the whole study."""
    GUARD = "guard"
    """The study's guard against failures that are alike."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    A decision that the attempt has not carried out yet, stored in the row of the RUNNING trial.

    Attributes:
        action: STOP, PAUSE or EXPLOIT.
        reason: The `reason` of the attempt's end, and of the trial's if it ends.
    """

    action: Action
    reason: Reason
    by: DecidedBy

    @property
    def refuses_results(self) -> bool:
        """
        Whether results that are reported after the verdict are dropped.

        True for decisions of schedulers and rules. A person's request may arrive in the middle of
        a step, and must not discard the step's result or skip a rung.
        """
        return self.by in (DecidedBy.SCHEDULER, DecidedBy.RULE)


@dataclass(frozen=True, slots=True)
class Decision:
    """
    A scheduler's answer to one report.

    Attributes:
        reason: Why the attempt must end; None if it continues.
        rung_step: The step of the rung that records the report; None if no rung does.
        cutoff: The score that the report was compared with (lower is better), for `show`.
    """

    action: Action = Action.CONTINUE
    reason: Reason | None = None
    rung_step: int | None = None
    cutoff: float | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict to store; None if the attempt continues."""
        if self.action is Action.CONTINUE or self.reason is None:
            return None
        return Verdict(self.action, self.reason, DecidedBy.SCHEDULER)


CONTINUE = Decision()


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The answer to a flush.

    Attributes:
        verdict: None to continue; else the attempt may save a last checkpoint and must finish.
        next_decision_step: The step at which the scheduler judges next; None for never.
        summary: The trial's summary after this flush; None if it was not read. It does not count
            when answers are compared.
    """

    verdict: Verdict | None = None
    next_decision_step: int | None = None
    summary: Summary | None = field(default=None, compare=False)
