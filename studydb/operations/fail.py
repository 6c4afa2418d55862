"""End an attempt whose results cannot be stored."""

from studydb.db import Database
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.failures import Failure
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease, Study
from studydb.operations.attempt_end import end_attempt
from studydb.operations.flushing import refused, unchanged
from studydb.store import leases


def fail(
    database: Database,
    study: Study,
    *,
    lease: Lease,
    flush_no: int,
    failure: Failure,
    process: AttemptProcess | None = None,
) -> Ending | None:
    """
    End an attempt as failed without reading its results or summing up its metrics.

    Args:
        flush_no: The flush number of the batch that could not be stored.

    Returns:
        The trial's next state; None if the same failure was stored before.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    with database.begin() as txn:
        held = leases.hold(txn, lease=lease)
        if held is None:
            refused(txn, lease=lease, flush_no=flush_no)
            return None

        ended = end_attempt(
            txn,
            study,
            unchanged(held),
            lease=lease,
            outcome=Reason.FAILED,
            flush_no=flush_no,
            failure=failure,
            process=process,
            summed=False,
        )
    return ended.ending
