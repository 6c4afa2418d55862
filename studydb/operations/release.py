"""Give a trial back: PENDING again at once, nothing spent."""

from studydb.db import Database
from studydb.domain.ending import Ending
from studydb.domain.records import Batch, Lease, Log, Study
from studydb.domain.states import Reason
from studydb.operations.finish import finish


def release(
    database: Database, study: Study, *, lease: Lease, batch: Batch, log: Log | None = None
) -> Ending | None:
    """
    End an attempt because its host is needed elsewhere (SIGTERM, drain); flushes what is left.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    return finish(database, study, lease=lease, outcome=Reason.PREEMPTED, batch=batch, log=log)
