"""Replace the function of a study by a newer text of it."""

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.records import Study, Trainable
from studydb.store import events, studies


def revise(
    database: Database, study: Study, trainable: Trainable, *, token: str, actor: str
) -> None:
    """
    Replace a study's trainable for workers that start from now on; others keep the one they have.

    Args:
        trainable: Signed for this study.
        token: Random; a duplicate request carries the same one.
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
