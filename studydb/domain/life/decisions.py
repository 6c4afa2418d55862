"""A scheduler's decision, the verdict that a trial's row stores, and the answer to a flush."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

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
    """The scheduler; also for a study paused because the user's scheduler did not decide."""
    RULE = "rule"
    """A stop rule; also for a study paused because the user's rule did not decide."""
    TRIAL = "trial"
    """The trial's own code, by a report with `done=True`."""
    PERSON = "person"
    """A person who paused or stopped this trial, or paused the study."""
    STUDY = "study"
    """The status of the study, which a person, a limit or the study itself has changed."""
    GUARD = "guard"
    """The check that pauses a study when its first trials fail alike."""
    FAIL_FAST = "fail_fast"
    """The setting that pauses a study at its first failure."""
    LIMIT = "limit"
    """A limit or a stop rule for the whole study, or the limit of a trial's running time."""
    REQUESTS = "requests"
    """
    The resource function: the study was paused because what this function says about a trial is
    unknown or cannot be stored.
    """


class Verdict(Struct, frozen=True):
    """
    A decision that the attempt has not carried out yet, stored in the row of the RUNNING trial.

    Attributes:
        action: STOP, PAUSE or EXPLOIT.
        reason: Why the attempt ends, and why the trial ends if the verdict ends the trial.
        at_once: Whether the worker kills the trial without the grace. Only a renewal sets this
            attribute; the trial's row does not store it.
    """

    action: Action
    reason: Reason
    by: DecidedBy
    at_once: bool = False

    @property
    def refuses_results(self) -> bool:
        """
        Whether results that are reported after the verdict are dropped.

        True for verdicts of schedulers, rules and limits, and if the trial is done. A person's
        request may arrive in the middle of a step, and must not discard the step's result or skip a
        rung.
        """
        return self.by in (DecidedBy.SCHEDULER, DecidedBy.RULE, DecidedBy.LIMIT, DecidedBy.TRIAL)


TRIAL_IS_DONE = Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.TRIAL)
"""
The verdict on a trial whose report said `done=True`.

If the attempt dies before it finishes, recovery ends the trial as COMPLETED. Without this verdict,
another attempt would begin after the last step.
"""


class RungKey(NamedTuple):
    """A rung of a study; transactions lock rungs in ascending order."""

    bracket: int
    step: int


@dataclass(frozen=True, slots=True)
class Entry:
    """
    What a rung records of a report.

    Attributes:
        score: The score of the reported value, or of a mean of several values; lower is better.
        waits: Whether the trial waits at the rung: it is PAUSED, and may be resumed from there.
    """

    rung: RungKey
    score: float
    waits: bool = False


class Exploit(Struct, frozen=True):
    """
    How a trial continues from another trial's checkpoint.

    Attributes:
        config: The config of the trial's next attempts.
    """

    source_trial_id: int
    checkpoint_id: int
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """
    A scheduler's answer to one report.

    Attributes:
        reason: Why the attempt must end; None if it continues.
        entry: What a rung records; None if no rung records the report.
        cutoff: The score that the report was compared with (lower is better), for `show`.
        exploit: What the action EXPLOIT copies; None for other actions. No operation carries out
            an EXPLOIT yet.
        why: In words, why a trial is stopped or paused, for `show` and `status`. Only a scheduler
            in the user's code sets it; studydb itself explains the decisions of its schedulers.
        resources: Which resources the next attempts of a pausing trial need, such as {"gpus": 2};
            None if the request does not change. Only a scheduler in the user's code sets it.
    """

    action: Action = Action.CONTINUE
    reason: Reason | None = None
    entry: Entry | None = None
    cutoff: float | None = None
    exploit: Exploit | None = None
    why: str | None = None
    resources: Mapping[str, float] | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict to store; None if the attempt continues."""
        if self.action is Action.CONTINUE or self.reason is None:
            return None
        return Verdict(self.action, self.reason, DecidedBy.SCHEDULER)

    def for_done_trial(self) -> "Decision":
        """Return the decision on a trial that is done: ranked at a rung, but not waiting there."""
        entry = self.entry and replace(self.entry, waits=False)
        return Decision(entry=entry, cutoff=self.cutoff)


CONTINUE = Decision()


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The answer to a flush.

    Attributes:
        verdict: None if the attempt continues. With a verdict, the attempt may save a last
            checkpoint and must finish.
        next_decision_step: The step at which the scheduler judges next; None for never.
        summary: The trial's summary after this flush; None if the summary was not read. A
            comparison of two answers ignores their summaries.
    """

    verdict: Verdict | None = None
    next_decision_step: int | None = None
    summary: Summary | None = field(default=None, compare=False)
