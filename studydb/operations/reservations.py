"""Read what a study's trials ask for, and reserve a worker for a trial."""

from studydb.db import Database
from studydb.domain.records import Study
from studydb.domain.resources import Resources
from studydb.store import resource_classes, studies


def read_classes(database: Database, study: Study) -> dict[str, Resources]:
    """Read a study's requests by class; empty if neither study nor trials ask for resources."""
    with database.begin(write=False, single=True) as txn:
        return resource_classes.read(txn, study_id=study.id)


def reserve(database: Database, study: Study, *, worker_id: int, number: int | None) -> bool:
    """
    Store the number of the trial for which a worker keeps its resources free.

    The row informs people and other workers, which ignore the rows of dead workers. The worker
    itself relies on its memory, so the row need not survive a crash of the database.

    Args:
        number: The trial's number; None if the worker is not reserved any more.

    Returns:
        False if another live worker has reserved itself for the trial.
    """
    with database.begin(durable=False) as txn:
        if number is not None:
            studies.lock(txn, study_id=study.id)  # only one worker may be reserved for a trial
            return resource_classes.reserve(
                txn, study_id=study.id, worker_id=worker_id, number=number
            )
        resource_classes.unreserve(txn, worker_id=worker_id)
        return True
