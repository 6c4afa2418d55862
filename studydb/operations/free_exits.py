"""Decide which exits by which a command gives its trial back count as lost attempts."""

from studydb.db import Txn
from studydb.domain.failures import Failure
from studydb.domain.life.ending import FREE_EXITS, GIVEN_BACK, TRY_LATER, retry_delay_s
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease
from studydb.store import attempts


def judge_exit(
    txn: Txn, *, lease: Lease, outcome: Reason, failure: Failure | None
) -> tuple[Reason, float]:
    """
    Decide whether an attempt whose command has given the trial back counts as a lost attempt.

    After `FREE_EXITS` such exits in a row without a new checkpoint, each further exit counts as a
    lost attempt. Otherwise a command that never trains would run for ever.

    Returns:
        The outcome, and the seconds that the trial waits before its next attempt if the outcome is
        PREEMPTED. If the command has not given the trial back, this is the given outcome, and 0 s.
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
