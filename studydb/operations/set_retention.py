"""Change which checkpoints of a study's trials are kept."""

from studydb.db import Txn
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.retention import Keep
from studydb.domain.records import Request, Study
from studydb.store import events, quotas, studies


def set_retention(txn: Txn, study: Study, keep: Keep, request: Request) -> None:
    """
    Change which checkpoints are kept, for attempts that begin from now on.

    The first save of such an attempt removes what is no longer kept; no removed checkpoint comes
    back. A quota applies to running attempts, too, so this call sums up the sizes of the kept
    checkpoints.
    """
    kind, data = EventKind.RETENTION_SET, {"keep": str(keep)}
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
    settings = studies.locked_settings(txn, study_id=study.id)
    quotas.recount(txn, study_id=study.id, has_quota=keep.quota is not None)
    stored = {**settings, "keep": keep.to_json()}
    studies.store_settings(txn, study_id=study.id, settings=stored)
