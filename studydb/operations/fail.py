"""End an attempt whose own content is in the way of its end."""

from studydb.db import Database
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import Reason
from studydb.domain.records import AttemptProcess, Failure, Lease, Study
from studydb.operations.finish import end_attempt
from studydb.operations.flushing import Flushed, refused
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
    End an attempt as failed without a look at its results: no last flush, no summary of metrics.

    Args:
        flush_no: Of the batch that could not be stored.

    Returns:
        Where the trial went; None when the attempt was ended by an earlier send.

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
            held,
            lease=lease,
            outcome=Reason.FAILED,
            flushed=Flushed((), held.summary, held.time_total_s, None),
            flush_no=flush_no,
            failure=failure,
            process=process,
            summed=False,
        )
    return ended.ending
