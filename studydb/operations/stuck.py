"""Whether a trial is lost at the same step each time, in the transaction that ends its attempt."""

from studydb.db import Txn
from studydb.domain.life.ending import DIED
from studydb.domain.life.states import Reason
from studydb.domain.records import Failure, Lease, Study
from studydb.store import attempts


def stuck_after(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> int | None:
    """
    The step after which this attempt and those before it died; None if the trial may be run again.

    Only deaths of a process whose worker lived count: one that dies with its host says nothing of
    the trial. The last flush must be stored; `losses_at_step` rows are read.
    """
    most = study.losses_at_step
    if most is None or failure.type != DIED:
        return None
    *before, this = attempts.reached(txn, lease=lease, limit=most)
    if len(before) < most - 1:
        return None
    alike = all((row.reason, row.error_type) == (Reason.LOST, DIED) for row in before)
    return int(this.step) if alike and {row.step for row in before} == {this.step} else None


def explanation(failure: Failure, study: Study, *, step: int) -> str:
    """What is to be added to the failure that ends a trial after so many deaths at a step."""
    where = f"after step {step}" if step else "before its first report"
    why = f" It died {study.losses_at_step} times in a row {where}, and is not run again."
    if "SIGKILL" in failure.message and "out of memory" not in failure.message:
        why += " Perhaps out of memory."
    return why
