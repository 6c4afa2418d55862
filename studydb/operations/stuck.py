"""Decide whether a lost trial is not retried, because its processes died at the same step."""

from studydb.db import Txn
from studydb.domain.failures import Failure
from studydb.domain.life.ending import DIED
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease, Study
from studydb.store import attempts


def stuck_note(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> str:
    """
    Return the reason not to retry a trial whose last attempts all died after the same step.

    Otherwise return "", and the trial is retried.

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
