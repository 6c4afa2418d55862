"""Read again what a person may have changed in a study."""

from dataclasses import replace

from studydb.db import Database
from studydb.domain.records import Study
from studydb.store import studies


def refreshed(database: Database, study: Study) -> Study:
    """
    Return the study with its current checkpoint stores and trainable.

    An attempt reads them after its claim has committed. So an attempt that is claimed after a
    change runs the new trainable.
    """
    with database.begin(write=False) as txn:
        now = studies.read_changeable(txn, study_id=study.id)
        trainable = study.trainable
        if now.trainable_uuid != (trainable and trainable.uuid):
            trainable = studies.find_trainable(txn, study_id=study.id)
    return replace(
        study,
        checkpoints=now.checkpoints,
        former_checkpoints=now.former_checkpoints,
        trainable=trainable,
    )
