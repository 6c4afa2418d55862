"""Read an inline checkpoint's bytes."""

from studydb.db import Database
from studydb.domain.errors import CheckpointError
from studydb.domain.records import Checkpoint
from studydb.store import checkpoints


def restore(database: Database, *, checkpoint: Checkpoint) -> bytes:
    """
    The bytes that `save` kept in the row.

    Raises:
        CheckpointError: The row has none.
    """
    assert checkpoint.id is not None
    with database.begin(write=False) as txn:
        data = checkpoints.data(txn, checkpoint_id=checkpoint.id)
    if data is None:
        raise CheckpointError(f"Checkpoint {checkpoint.uuid} has no bytes in the database.")
    return data
