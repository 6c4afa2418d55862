"""Decide how the end of an attempt counts for its trial, by the ends of the attempts before it."""

from studydb.db import Txn
from studydb.domain.failures import Failure
from studydb.domain.life.ending import DIED, FREE_EXITS, GIVEN_BACK, TRY_LATER, retry_delay_s
from studydb.domain.life.retry_policy import UNCOUNTED_IN_A_ROW, Counting
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease, Study
from studydb.store import attempts


def judge_exit(
    txn: Txn, *, lease: Lease, outcome: Reason, failure: Failure | None
) -> tuple[Reason, float]:
    """
    Decide whether an attempt whose command has given the trial back counts as a lost attempt.

    After `FREE_EXITS` such exits in a row without a new checkpoint, each further exit counts as a
    lost attempt. Without this rule, a command that never trains would run for ever.

    Returns:
        The outcome, and the seconds that the trial waits before its next attempt if the outcome is
        PREEMPTED. If the command has not given the trial back: `outcome`, and 0 s.
    """
    exits = (GIVEN_BACK, TRY_LATER)
    if outcome is not Reason.PREEMPTED or failure is None or failure.type not in exits:
        return outcome, 0.0
    in_a_row = 1
    for row in attempts.since_checkpoint(txn, lease=lease, limit=FREE_EXITS):
        if row.error_type not in exits:
            break
        in_a_row += 1
    if in_a_row > FREE_EXITS:
        return Reason.LOST, 0.0
    return outcome, retry_delay_s(in_a_row) if failure.type == TRY_LATER else 0.0


def judge_failure(
    txn: Txn, study: Study, *, lease: Lease, outcome: Reason, failure: Failure | None
) -> tuple[Counting, float]:
    """
    Return whether a failure counts, does not count, or is final, and how long the trial waits.

    The 10th and each further failure in a row without a new checkpoint counts, even if the study's
    `retry` does not count it. Without this rule, a trial that never trains would run for ever.

    Returns:
        How the failure counts, and the seconds that the trial waits after an uncounted failure.
    """
    if study.retry is None or failure is None or outcome is not Reason.FAILED:
        return Counting.COUNTED, 0.0
    counting = study.retry.counting(failure)
    if counting is not Counting.UNCOUNTED:
        return counting, 0.0
    in_a_row = 1
    for row in attempts.since_checkpoint(txn, lease=lease, limit=UNCOUNTED_IN_A_ROW):
        if row.reason != Reason.FAILED:
            break
        in_a_row += 1
    if in_a_row > UNCOUNTED_IN_A_ROW:
        return Counting.COUNTED, 0.0
    return counting, retry_delay_s(in_a_row)


def stuck_note(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> str:
    """
    Return the reason not to retry a trial whose last attempts all died after the same step.

    Return "" if this reason does not apply; then `max_losses` decides.

    A death counts only if the worker survived it: the death of a host says nothing about the trial.
    Call this after the last flush. The last `study.losses_at_step` attempts are compared.
    """
    limit = study.losses_at_step
    if limit is None or failure.type != DIED:
        return ""
    *before, this = attempts.reached(txn, lease=lease, limit=limit)
    alike = all((row.reason, row.error_type) == (Reason.LOST, DIED) for row in before)
    if len(before) < limit - 1 or not (alike and {row.step for row in before} == {this.step}):
        return ""
    where = f"after step {this.step}" if this.step else "before its first report"
    why = f" This has ended {limit} attempts in a row {where}, so the trial is not run again."
    if "SIGKILL" in failure.message and "out of memory" not in failure.message:
        why += " Perhaps its host was out of memory."
    return why
