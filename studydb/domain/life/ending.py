"""The state of a trial after an attempt ends. Finish, release and recovery share these rules."""

from typing import assert_never

from msgspec import Struct

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.retry_policy import Counting
from studydb.domain.life.states import Reason, State, Status

NO_LIMIT = -1
"""`max_failures` of a study that retries a failed trial without limit."""

MAX_LOSSES = 10
"""By default, a trial survives this many lost attempts between two checkpoints."""

LOSSES_AT_STEP = 3
"""By default, this many lost attempts in a row at one step end a trial; see `create_study`."""

DIED = "Lost"
"""The error type of an attempt whose process died while its worker lived."""

GIVEN_BACK, TRY_LATER = "GivenBack", "TryLater"
"""
The error types of an attempt whose command asked for another attempt, or could not be started.
GivenBack: the command ended with exit code 130 or 143, or was killed by SIGINT or SIGTERM; another
attempt may begin without delay. TryLater: the command ended with exit code 75, or its host could
not start the command; another attempt may begin after a back-off.
"""

FREE_EXITS = 9
"""
If several attempts of a trial in a row end as GivenBack or TryLater, without a new checkpoint, the
first 9 of these attempts do not count as lost. Each further attempt counts as lost.
"""

LONGEST_DELAY_S = 300.0

INVALIDATE = "INVALIDATE"
"""
An attempt reads this value as its trial's `request` if a person has invalidated the trial. The
value asks the attempt to stop. The column `request` never holds it.
"""


class RetryLimits(Struct, frozen=True):
    """How often a trial may fail (by an exception) or be lost (without an exception)."""

    max_failures: int
    max_losses: int

    def allow(self, failures: int) -> bool:
        """Whether a trial that has failed this many times is retried."""
        return self.max_failures == NO_LIMIT or failures <= self.max_failures


class TrialFacts(Struct, frozen=True):
    """
    What is known about a trial when its attempt ends.

    Attributes:
        failures: How many of the trial's earlier failures count.
        losses: How many earlier attempts were lost since the highest step of the trial's
            checkpoints last rose.
        verdict: The verdict that the end of the attempt carries out; see `final_verdict`.
        note: Why a trial whose attempt was lost is not retried; "" if only `max_losses` decides.
        delay_s: The seconds that a trial waits after a PREEMPTED attempt or an uncounted failure.
        counting: Whether a failure counts, does not count, or ends the trial.
    """

    failures: int
    losses: int
    verdict: Verdict | None
    note: str = ""
    delay_s: float = 0.0
    counting: Counting = Counting.COUNTED


class Ending(Struct, frozen=True):
    """
    The state of a trial after one of its attempts has ended.

    Attributes:
        reason: Why the trial ended; None if its state is not final.
        attempt_reason: Why the attempt ended.
        failures, losses: The counts of `TrialFacts`, plus 1 if the ended attempt counts as a
            failure or as lost.
        delay_s: The seconds that a PENDING trial waits before it can be claimed; 0 in other states.
        paused_by: Who paused the trial. If STUDY, the trial goes on when the study is resumed.
        note: Text that is added to the message of the attempt's failure.
    """

    state: State
    reason: Reason | None
    attempt_reason: Reason
    failures: int
    losses: int
    delay_s: float = 0.0
    paused_by: DecidedBy | None = None
    note: str = ""


def requested_verdict(request: str | None, status: Status) -> Verdict | None:
    """
    Return the verdict that the trial's request or the study's status asks for, or None.

    A stop comes before a pause. If both ask for a stop, or both for a pause, the request comes
    first.
    """
    return (
        _VERDICTS_OF_STOPS.get(request)
        or _VERDICTS_OF_STATUS.get(status)
        or (_PAUSED_BY_PERSON if request == Action.PAUSE else None)
        or (_PAUSED_WITH_STUDY if status is Status.PAUSED else None)
    )


_VERDICTS_OF_STOPS: dict[str | None, Verdict] = {
    INVALIDATE: Verdict(Action.STOP, Reason.INVALIDATED, DecidedBy.PERSON),
    Action.STOP: Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.PERSON),
}
_VERDICTS_OF_STATUS = {
    Status.SPENT: Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.STUDY),
    Status.STOPPED: Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.STUDY),
}
_PAUSED_BY_PERSON = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.PERSON)
_PAUSED_WITH_STUDY = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)


def effective_verdict(verdict: Verdict | None, requested: Verdict | None) -> Verdict | None:
    """
    Return the stored verdict if it refuses results; if not, return the requested verdict.

    A stored verdict that came from a request does not count: a person can have changed or withdrawn
    the request since then, and the last request wins.
    """
    return verdict if verdict is not None and verdict.refuses_results else requested


def final_verdict(verdict: Verdict | None, requested: Verdict | None) -> Verdict | None:
    """
    Return the verdict that an attempt's end carries out.

    Unlike in `effective_verdict`, a person's request for this trial, and the end of the study,
    replace a scheduler's exploit or pause. The end of the attempt deletes the request, so a request
    that is not carried out now would be lost. A study's pause replaces an exploit, but not a
    scheduler's pause.
    """
    effective = effective_verdict(verdict, requested)
    if effective is None or effective.action is Action.STOP or requested is None:
        return effective
    replaces = (
        effective.action is Action.EXPLOIT
        or requested.action is Action.STOP
        or requested.by is DecidedBy.PERSON
    )
    return requested if replaces else effective


def verdict_of_completed(verdict: Verdict | None, requested: Verdict | None) -> Verdict | None:
    """Return a completed attempt's stored verdict; None if `final_verdict` returns another."""
    return verdict if final_verdict(verdict, requested) == verdict else None


def retry_delay_s(count: int) -> float:
    """Return the back-off for a count of 1, 2, 3, …: 1, 2, 4, … 300 s; 0 for a count of 0."""
    doublings = min(count - 1, 9)  # 2**9 s is over the longest delay; 2.0**1024 would overflow
    return min(2.0**doublings, LONGEST_DELAY_S) if count > 0 else 0.0


def decide_ending(outcome: Reason, facts: TrialFacts, limits: RetryLimits) -> Ending:
    """
    Decide the state of a trial whose attempt has ended.

    A STOP in `facts.verdict` is always carried out. A PAUSE is not carried out if the attempt
    completed, and an EXPLOIT is not carried out if the attempt failed or was lost.

    Args:
        outcome: COMPLETED, FAILED, LOST or PREEMPTED.
    """
    is_counted = facts.counting is not Counting.UNCOUNTED
    failures = facts.failures + (outcome is Reason.FAILED and is_counted)
    losses = facts.losses + (outcome is Reason.LOST)
    verdict = facts.verdict
    died = outcome in (Reason.FAILED, Reason.LOST)
    if verdict is not None and not _outcome_prevails(verdict, outcome, died=died):
        return _carry_out(verdict, outcome if died else verdict.reason, failures, losses)
    match outcome:
        case Reason.FAILED if facts.counting is Counting.UNCOUNTED:
            delay_s = facts.delay_s
        case Reason.FAILED if facts.counting is not Counting.FINAL and limits.allow(failures):
            delay_s = retry_delay_s(failures)
        case Reason.LOST if losses <= limits.max_losses and not facts.note:
            delay_s = retry_delay_s(losses - 1)  # after the first lost attempt, without delay
        case Reason.PREEMPTED:
            delay_s = facts.delay_s
        case Reason.FAILED | Reason.LOST:
            return Ending(State.ERROR, outcome, outcome, failures, losses, note=facts.note)
        case _:
            return Ending(State.TERMINATED, outcome, outcome, failures, losses)
    return Ending(State.PENDING, None, outcome, failures, losses, delay_s=delay_s)


def _outcome_prevails(verdict: Verdict, outcome: Reason, *, died: bool) -> bool:
    if verdict.action is Action.PAUSE:
        return outcome is Reason.COMPLETED
    return verdict.action is Action.EXPLOIT and died


def _carry_out(verdict: Verdict, attempt_reason: Reason, failures: int, losses: int) -> Ending:
    match verdict.action:
        case Action.STOP:
            return Ending(State.TERMINATED, verdict.reason, attempt_reason, failures, losses)
        case Action.PAUSE:
            return Ending(State.PAUSED, None, attempt_reason, failures, losses, 0.0, verdict.by)
        case Action.EXPLOIT:  # the lease has ended, so the next attempt needs a claim
            return Ending(State.PENDING, None, attempt_reason, failures, losses)
        case Action.CONTINUE:
            raise ValueError("CONTINUE is no verdict.")
        case _:
            assert_never(verdict.action)
