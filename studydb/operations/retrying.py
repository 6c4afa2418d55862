"""Decide what a failure means for its trial, by the study's `retry`."""

from studydb.db import Txn
from studydb.domain.failures import Failure
from studydb.domain.life.ending import retry_delay_s
from studydb.domain.life.retry_policy import UNCOUNTED_IN_A_ROW, Counting
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease, Study
from studydb.store import attempts


def judge_failure(
    txn: Txn, study: Study, *, lease: Lease, outcome: Reason, failure: Failure | None
) -> tuple[Counting, float]:
    """
    Return whether a failure counts, does not count, or is final, and how long the trial waits.

    The 10th failure in a row without a new checkpoint counts, and so does each failure after it,
    even if `retry` does not count it. Otherwise a trial that never trains would run for ever.

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
