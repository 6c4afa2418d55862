"""Delete a study with all its rows, a bounded piece at a time."""

from studydb.db import Database
from studydb.domain.errors import NotAllowed
from studydb.domain.records import Study
from studydb.domain.states import Status
from studydb.domain.wording import counted
from studydb.store import counters, deletion, studies


def close(database: Database, study: Study) -> None:
    """
    Stop a study that is to be deleted; then what lies outside its rows may be removed.

    Raises:
        NotAllowed: Trials are RUNNING.
    """
    with database.begin() as txn:
        studies.set_status(txn, study_id=study.id, status=Status.STOPPED)
        running = counters.read(txn, study_id=study.id).running
    if running:
        verb = "is" if running == 1 else "are"
        raise NotAllowed(
            f"{counted(running, 'trial')} of study {study.name!r} {verb} running. The study is "
            "stopped now: delete it again once they have ended, or once the lease of a dead worker "
            "has run out."
        )


def delete(database: Database, study: Study) -> None:
    """
    Delete a study; after a crash the same call goes on where it ended.

    Raises:
        NotAllowed: Trials are RUNNING; stop the study first.
    """
    close(database, study)

    more = True
    while more:
        with database.begin() as txn:
            more = deletion.some_trials(txn, study_id=study.id)
    with database.begin() as txn:
        studies.lock(txn, study_id=study.id)  # before the counters, as everybody does
        deletion.rest(txn, study_id=study.id)
