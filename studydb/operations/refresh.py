"""Read again what a person may have changed in a study."""

from dataclasses import replace

from studydb.db import Database
from studydb.domain.records import Study
from studydb.store import studies, trainables


def refreshed(database: Database, study: Study) -> Study:
    """
    Return the study with its current checkpoint stores, retention and trainable.

    A worker calls this for each attempt after the claim has committed. So an attempt that is
    claimed after a change runs the new trainable. If the trainable has changed, it and the stores
    are read in one snapshot, because objects that are bound to a trainable (`with_parameters`) are
    in the stores.
    """
    trainable = study.trainable
    known = "" if trainable is None else trainable.uuid
    with database.begin(write=False, single=True) as txn:
        now = studies.read_changeable(txn, study_id=study.id, trainable_uuid=known)
    if known and not now.has_trainable:
        with database.begin(write=False, snapshot=True) as txn:
            now = studies.read_changeable(txn, study_id=study.id, trainable_uuid=known)
            trainable = trainables.newest(txn, study_id=study.id)
    sources: dict[str, tuple[str | None, ...]] = {}
    if now.source_ids:
        with database.begin(write=False, single=True) as txn:
            sources = studies.stores_of(txn, ids=now.source_ids)
    return replace(
        study,
        checkpoints=now.checkpoints,
        former_checkpoints=now.former_checkpoints,
        source_checkpoints=sources,
        keep=now.keep,
        trainable=trainable,
    )
