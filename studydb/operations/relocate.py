"""Change the store of a study's checkpoints."""

from studydb.db import Txn
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study
from studydb.store import events, studies


def relocate(txn: Txn, study: Study, url: str, request: Request) -> None:
    """
    Change the store for attempts that begin from now on; the former stores stay readable.

    The caller has checked `url`.
    """
    kind, data = EventKind.CHECKPOINTS_SET, {"checkpoints": url}
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
    studies.relocate(txn, study_id=study.id, url=url)
