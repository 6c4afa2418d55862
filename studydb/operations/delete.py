"""Delete a study with all its rows, a bounded piece at a time."""

from studydb.db import Database
from studydb.domain.errors import NotAllowed
from studydb.domain.records import Study
from studydb.domain.states import Status
from studydb.store import counters, deletion, studies


def delete(database: Database, study: Study) -> None:
    """
    Delete a study; after a crash the same call goes on where it ended.

    Raises:
        NotAllowed: Trials are RUNNING; stop the study first.
    """
    with database.begin() as txn:
        studies.set_status(txn, study_id=study.id, status=Status.STOPPED)
        running = counters.read(txn, study_id=study.id).running
    if running:
        raise NotAllowed(
            f"{running} trials of study {study.name!r} are running. It is stopped now; delete it "
            "once they have ended."
        )

    more = True
    while more:
        with database.begin() as txn:
            more = deletion.some_trials(txn, study_id=study.id)
    with database.begin() as txn:
        deletion.rest(txn, study_id=study.id)
