"""Record a checkpoint for the trial's next attempt."""

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.records import Checkpoint, Lease
from studydb.operations.flushing import lost
from studydb.store import checkpoints, leases, uploads


def save(
    database: Database, *, lease: Lease, checkpoint: Checkpoint, data: bytes | None = None
) -> list[Checkpoint]:
    """
    Record a checkpoint, which the trial's next attempt will restore.

    An attempt with a verdict may still save its last state. If the checkpoint's step is later than
    all earlier checkpoints' steps, the trial's losses are set to 0.

    Args:
        data: The bytes of an inline checkpoint; None for one that `begin_upload` has recorded.

    Returns:
        Expired checkpoints, whose bytes may now be deleted.

    Raises:
        LeaseLost: The attempt no longer holds its trial; the caller should delete the bytes.
    """
    try:
        with database.begin() as txn:
            held = leases.hold(txn, lease=lease)
            if held is None:
                return _saved_before(txn, lease, checkpoint)

            row_id = checkpoints.insert(txn, lease=lease, what=checkpoint, data=data)
            if data is None:
                uploads.end(txn, uuid=checkpoint.uuid)
            advanced = checkpoint.step > held.checkpoint_step
            checkpoints.set_to_restore(
                txn,
                trial_id=lease.trial_id,
                checkpoint_id=row_id,
                step=max(checkpoint.step, held.checkpoint_step),
                losses=0 if advanced else held.losses,
            )
            return checkpoints.expire(txn, trial_id=lease.trial_id, newest=row_id)
    except Duplicate:
        with database.begin(write=False) as txn:
            return _saved_before(txn, lease, checkpoint)


def _saved_before(txn: Txn, lease: Lease, checkpoint: Checkpoint) -> list[Checkpoint]:
    if checkpoints.by_uuid(txn, uuid=checkpoint.uuid) is None:
        raise lost(lease)
    return checkpoints.expired(txn, trial_id=lease.trial_id)
