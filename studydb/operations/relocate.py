"""Change the store of a study's checkpoints."""

from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study
from studydb.store import events, studies


def relocate(database: Database, study: Study, url: str, request: Request) -> None:
    """
    Change the store for attempts that begin from now on; the former stores stay readable.

    The caller has checked `url`.
    """
    with suppress(Duplicate), database.begin() as txn:
        kind, data = EventKind.CHECKPOINTS_SET, {"checkpoints": url}
        events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
        studies.relocate(txn, study_id=study.id, url=url)
