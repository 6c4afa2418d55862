"""Replace a study's trainable."""

from studydb.db import Txn
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study, Trainable
from studydb.store import events, studies


def revise(txn: Txn, study: Study, trainable: Trainable, request: Request) -> None:
    """
    Replace a study's trainable for attempts that begin from now on.

    Args:
        trainable: The new trainable, signed for this study.
    """
    studies.lock(txn, study_id=study.id)  # concurrent calls must not leave two trainables
    former = studies.drop_trainable(txn, study_id=study.id)
    data = {"name": trainable.name, "kind": trainable.kind, "former_name": former}
    events.append_request(
        txn, study_id=study.id, kind=EventKind.REVISED, request=request, data=data
    )
    studies.insert_trainable(txn, study_id=study.id, what=trainable)
