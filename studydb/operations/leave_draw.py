"""Leave the trial of the next draw to other workers, and go on to the draw after it."""

from collections.abc import Sequence
from uuid import UUID, uuid5

from studydb.db import Database
from studydb.db.faults import DuplicateParams
from studydb.domain.life.states import State
from studydb.domain.records import Study
from studydb.domain.resources import OF_STUDY
from studydb.domain.searching import HistorySearcher
from studydb.operations.ask import skip_duplicate
from studydb.store import counters, proposals, set_aside


def leave_draw(
    database: Database, study: Study, *, fits: Sequence[str], if_nothing_waits: bool
) -> bool:
    """
    Make the trial of the next draw PENDING, if it does not fit this worker.

    The trial becomes PENDING only if `may_set_aside` is True, and only while fewer than
    `most_waiting` PENDING trials of the draw's class wait. No draw is taken twice: a call that is
    repeated after a lost reply begins with the draw that is the next one by then.

    Args:
        fits: The resource classes whose trials the worker can start now.
        if_nothing_waits: Whether to do nothing while a trial of a class in `fits` can be claimed.

    Returns:
        Whether to ask again: the next draw's trial fits the worker, or this call has made the trial
        PENDING, or has skipped the draw because another trial has the same params.
    """
    with database.begin(write=False) as txn:
        following = proposals.next_of(
            txn, study_id=study.id, if_nothing_waits=if_nothing_waits, fits=fits
        )
    if following is None or following.resource_class is None:
        return False
    if following.resource_class in fits:
        return True
    if not may_set_aside(fits):
        return False
    try:
        return _set_aside(database, study, following.draw)
    except DuplicateParams:
        skip_duplicate(database, study)
        return True


def may_set_aside(fits: Sequence[str]) -> bool:
    """Tell whether a worker can now start trials of a class other than the study's (`OF_STUDY`)."""
    return any(name != OF_STUDY for name in fits)


def most_waiting(study: Study) -> int:
    """Return the most PENDING trials of one class that workers leave to other workers."""
    learns = isinstance(study.searcher, HistorySearcher)
    return set_aside.MOST_OF_MODEL if learns else set_aside.MOST


def _set_aside(database: Database, study: Study, draw: int) -> bool:
    with database.begin(durable=False) as txn:  # if a crash undoes this, a worker repeats it
        number = set_aside.take_draw(txn, study_id=study.id, draw=draw, most=most_waiting(study))
        if number is None:
            txn.abandon()
            return False

        uuid = str(uuid5(UUID(study.uuid), f"draw {draw}"))
        set_aside.make(txn, study_id=study.id, draw=draw, number=number, uuid=uuid)
        counters.move(txn, study_id=study.id, key=draw, out_of=None, into=State.PENDING)
    return True
