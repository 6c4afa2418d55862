"""Close a rung, as the scheduler decides."""

from studydb.db import Database
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import Status
from studydb.domain.records import Study
from studydb.domain.scheduling import Close
from studydb.store import closings, events, rungs, studies


def close_rung(database: Database, study: Study, closing: Close) -> bool:
    """
    Close a rung: store the position (score and ordinal) of the worst trial that is kept.

    Later transactions give up the worse trials (`give_up`). A rung that was closed before stays as
    it is. If the study is not RUNNING, no rung closes.

    Returns:
        Whether this call has closed the rung.
    """
    with database.begin(durable=False) as txn:  # if a crash undoes this, the rung closes again
        rung = rungs.lock(txn, study_id=study.id, key=closing.rung)
        status = studies.budget(txn, study_id=study.id).status
        if rung is None or rung.is_closed or status is not Status.RUNNING:
            txn.abandon()
            return False

        n_kept = closings.close(txn, rung=rung, keep=closing.keep)

        events.append(
            txn,
            study_id=study.id,
            kind=EventKind.RUNG_CLOSED,
            actor=Actor.SCHEDULER,
            data=closing.rung._asdict() | {"kept": n_kept},
        )
    return True
