"""Replace a study's trainable."""

from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study, Trainable
from studydb.store import events, studies


def revise(database: Database, study: Study, trainable: Trainable, request: Request) -> None:
    """
    Replace a study's trainable for attempts that begin from now on.

    Args:
        trainable: The new trainable, signed for this study.
    """
    with suppress(Duplicate), database.begin() as txn:
        kind, data = EventKind.REVISED, {"name": trainable.name, "kind": trainable.kind}
        events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
        studies.lock(txn, study_id=study.id)  # two requests leave one trainable, not two
        studies.drop_trainable(txn, study_id=study.id)
        studies.insert_trainable(txn, study_id=study.id, what=trainable)
