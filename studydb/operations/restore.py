"""Read a trial's checkpoints, and the bytes of an inline checkpoint."""

from studydb.db import Database
from studydb.domain.checkpoint import Checkpoint, KeptCheckpoint
from studydb.domain.errors import CheckpointError
from studydb.domain.records import TrialRow
from studydb.operations.checkpoints import newest_of
from studydb.store import checkpoint_listing, checkpoints, trials


def restore(database: Database, *, checkpoint: Checkpoint) -> bytes:
    """
    Read the bytes of an inline checkpoint.

    Raises:
        CheckpointError: The checkpoint was removed, or its row has no bytes.
    """
    assert checkpoint.id is not None
    with database.begin(write=False) as txn:
        data = checkpoints.data(txn, checkpoint_id=checkpoint.id)
    if data is None:
        raise CheckpointError(
            f"Checkpoint {checkpoint.uuid} has no bytes in the database: it was removed meanwhile, "
            "or its row is damaged. `studydb checkpoints` lists what is kept."
        )
    return data


def newest(database: Database, *, trial: TrialRow, study_id: int) -> KeptCheckpoint | None:
    """Read the checkpoint that a trial's next attempt would restore; None to start from scratch."""
    with database.begin(write=False) as txn:
        now = trials.find(txn, study_id=study_id, number=trial.number)
        if now is None or now.checkpoint_id is None:
            return None
        found = newest_of(txn, checkpoint_id=now.checkpoint_id)
        if found is None or found.id is None:
            return None
        return checkpoint_listing.find(txn, checkpoint_id=found.id)


def kept(database: Database, *, trial: TrialRow) -> list[KeptCheckpoint]:
    """Read a trial's kept checkpoints, oldest first, including one that a person uploaded."""
    with database.begin(write=False, single=True) as txn:
        return checkpoint_listing.of_trial(txn, trial_id=trial.id)
