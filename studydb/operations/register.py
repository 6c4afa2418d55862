"""Register and deregister a worker process or an own loop."""

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.records import Process, Study
from studydb.domain.resources import Capacity
from studydb.store import studies, workers


def register(
    database: Database,
    study: Study,
    *,
    uuid: str,
    process: Process,
    slots: int,
    lease_s: float,
    version: str,
    capacity: Capacity | None = None,
) -> int:
    """
    Insert the row of a worker process or an own loop; the first row sets the study's `started_at`.

    Args:
        capacity: What the worker or own loop offers to trials; None if every request fits.
        uuid: New for each start of a worker or own loop. If a row with this uuid exists, no second
            row is inserted.

    Returns:
        The worker's id.
    """
    try:
        with database.begin() as txn:
            worker_id = workers.insert(
                txn,
                uuid=uuid,
                study_id=study.id,
                process=process,
                slots=slots,
                lease_s=lease_s,
                version=version,
                capacity=capacity,
            )
            studies.start(txn, study_id=study.id, worker_id=worker_id)
        return worker_id
    except Duplicate:
        with database.begin(write=False) as txn:
            return workers.id_of(txn, uuid=uuid)


def leave(database: Database, *, worker_id: int) -> None:
    """Record that a worker or own loop ends by itself; leases that it still holds expire later."""
    with database.begin() as txn:
        workers.end(txn, worker_id=worker_id)
