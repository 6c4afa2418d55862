"""What becomes of a trial when an attempt ends: one rule for finish, release and recovery."""

from dataclasses import dataclass
from typing import assert_never

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Reason, State, Status

FOR_EVER = -1
"""`max_failures` of a study that never gives a trial up."""

MAX_LOSSES = 10
"""Losses that a trial survives between two checkpoints, by default."""

LOSSES_AT_STEP = 3
"""So many losses in a row at the same step end a trial, unless `max_losses` was asked for."""

DIED = "Lost"
"""The error type of an attempt whose process died while its worker lived."""

LONGEST_DELAY_S = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a trial may fail (by exceptions of the user's code) or be lost (without one)."""

    max_failures: int
    max_losses: int


@dataclass(frozen=True, slots=True)
class Standing:
    """
    What the rows say of a trial when its attempt ends.

    Attributes:
        note: Why a lost trial is not run again whatever its losses; "" if it may be.
    """

    failures: int
    losses: int
    verdict: Verdict | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """
    The move that an attempt's end makes.

    Attributes:
        state: Where the trial goes.
        reason: The trial's, None unless it ends for good.
        attempt_reason: The attempt's.
        delay_s: How long a trial that goes back to PENDING waits; 0 for not at all.
        paused_by: Who may wake a PAUSED trial.
        note: What is to be said of it beside the attempt's failure.
    """

    state: State
    reason: Reason | None
    attempt_reason: Reason
    failures: int
    losses: int
    delay_s: float = 0.0
    paused_by: DecidedBy | None = None
    note: str = ""


def wanted(request: str | None, status: Status) -> Verdict | None:
    """The verdict that a person's request, of this trial or of its study, asks for."""
    if request == Action.STOP:
        return Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.PERSON)
    if status is Status.STOPPED:
        return Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.STUDY)
    if request == Action.PAUSE:
        return Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.PERSON)
    if status is Status.PAUSED:
        return Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)
    return None


def standing(verdict: Verdict | None, asked: Verdict | None) -> Verdict | None:
    """
    The verdict on a running attempt: the scheduler's or a rule's, else what people ask for now.

    A stored verdict that came from a request is replaced when the request changes, and withdrawn
    with it: the last request wins for as long as the attempt runs.
    """
    return verdict if verdict is not None and verdict.refuses_results else asked


def settle(verdict: Verdict | None, asked: Verdict | None) -> Verdict | None:
    """
    The verdict that an attempt's end carries out.

    As `standing`, but a scheduler's pause gives way to a person's request: the request ends with
    the attempt, and would otherwise be forgotten.
    """
    stands = standing(verdict, asked)
    if stands is not None and stands.action is Action.PAUSE and asked is not None:
        return asked if asked.action is Action.STOP or asked.by is DecidedBy.PERSON else stands
    return stands


def settle_completed(verdict: Verdict | None, asked: Verdict | None) -> Verdict | None:
    """As `settle`, of an attempt that completed: a request that it was not told of is void."""
    return verdict if settle(verdict, asked) == verdict else None


def retry_delay_s(count: int) -> float:
    """Back-off before the retry that follows the `count`-th failure: 1, 2, 4, … 300 s."""
    doublings = min(count - 1, 9)  # 512 s: past the longest, and no float overflows
    return min(2.0**doublings, LONGEST_DELAY_S) if count > 0 else 0.0


def conclude(outcome: Reason, standing: Standing, limits: Limits) -> Ending:
    """
    Decide where an ended attempt leaves its trial.

    A standing verdict is carried out whatever the outcome: an attempt that dies after the decision
    to stop it is not run again.

    Args:
        outcome: COMPLETED, FAILED, LOST, PREEMPTED or TIMED_OUT.
    """
    failures = standing.failures + (outcome is Reason.FAILED)
    losses = standing.losses + (outcome is Reason.LOST)
    verdict = standing.verdict
    if verdict is not None and not (
        outcome is Reason.COMPLETED and verdict.action is Action.PAUSE  # it ended before it paused
    ):
        died = outcome in (Reason.FAILED, Reason.LOST)
        return _carry_out(verdict, outcome if died else verdict.reason, failures, losses)
    match outcome:
        case Reason.FAILED if limits.max_failures == FOR_EVER or failures <= limits.max_failures:
            delay_s = retry_delay_s(failures)
        case Reason.LOST if losses <= limits.max_losses and not standing.note:
            delay_s = retry_delay_s(losses - 1)  # the first loss says nothing of the trial
        case Reason.PREEMPTED:
            delay_s = 0.0
        case Reason.FAILED | Reason.LOST:
            return Ending(State.ERROR, outcome, outcome, failures, losses, note=standing.note)
        case _:
            return Ending(State.TERMINATED, outcome, outcome, failures, losses)
    return Ending(State.PENDING, None, outcome, failures, losses, delay_s=delay_s)


def _carry_out(verdict: Verdict, attempt_reason: Reason, failures: int, losses: int) -> Ending:
    match verdict.action:
        case Action.STOP:
            return Ending(State.TERMINATED, verdict.reason, attempt_reason, failures, losses)
        case Action.PAUSE:
            paused_by = verdict.by
            return Ending(State.PAUSED, None, attempt_reason, failures, losses, paused_by=paused_by)
        case Action.EXPLOIT:  # the lease has ended, so the next attempt needs a claim
            return Ending(State.PENDING, None, attempt_reason, failures, losses)
        case Action.CONTINUE:
            raise ValueError("CONTINUE is no verdict.")
        case _:
            assert_never(verdict.action)
