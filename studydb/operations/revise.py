"""Put another text of a study's function in the place of the one that it was created with."""

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.records import Study, Trainable
from studydb.store import events, studies


def revise(
    database: Database, study: Study, trainable: Trainable, *, token: str, actor: str
) -> None:
    """
    Have workers that start from now on run this; those that work already keep what they have read.

    Args:
        trainable: Signed for this study.
        token: Random, used for one request only; sent again after a lost reply.
    """
    try:
        with database.begin() as txn:
            data = {"name": trainable.name, "kind": trainable.kind}
            events.append(
                txn, study_id=study.id, kind="revised", actor=actor, data=data, token=token
            )
            studies.drop_trainable(txn, study_id=study.id)
            studies.insert_trainable(txn, study_id=study.id, what=trainable)
    except Duplicate:
        return
