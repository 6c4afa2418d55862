"""Tell whether a trial dies at the same step each time."""

from studydb.db import Txn
from studydb.domain.life.ending import DIED
from studydb.domain.life.states import Reason
from studydb.domain.records import Failure, Lease, Study
from studydb.store import attempts


def stuck_after(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> int | None:
    """
    Return the step after which the last attempts all died; None if the trial may run again.

    Only deaths of a process whose worker lived count: the death of a host says nothing about the
    trial. The last flush must be stored. `losses_at_step` rows are read.
    """
    limit = study.losses_at_step
    if limit is None or failure.type != DIED:
        return None
    *before, this = attempts.reached(txn, lease=lease, limit=limit)
    if len(before) < limit - 1:
        return None
    alike = all((row.reason, row.error_type) == (Reason.LOST, DIED) for row in before)
    return int(this.step) if alike and {row.step for row in before} == {this.step} else None


def explanation(failure: Failure, study: Study, *, step: int) -> str:
    """Write the text that is added to the failure of a trial that died too often at a step."""
    where = f"after step {step}" if step else "before its first report"
    why = f" It died {study.losses_at_step} times in a row {where}, and is not run again."
    if "SIGKILL" in failure.message and "out of memory" not in failure.message:
        why += " Perhaps out of memory."
    return why
