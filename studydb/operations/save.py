"""Record a checkpoint for the trial's next attempt."""

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.life.retention import Keep, SavedState
from studydb.domain.objective import Objective
from studydb.domain.records import Lease
from studydb.operations.flushing import lost
from studydb.operations.quota import count_saved, removed_before
from studydb.store import checkpoint_listing, checkpoints, leases, uploads

NEWEST = Keep()


def save(
    database: Database,
    *,
    lease: Lease,
    checkpoint: Checkpoint,
    data: bytes | None = None,
    keep: Keep = NEWEST,
    objective: Objective | None = None,
) -> list[Checkpoint]:
    """
    Record a checkpoint, which the trial's next attempt will restore.

    An attempt with a verdict may still save its last state. If the checkpoint's step is later than
    the steps of all earlier checkpoints, the count of the trial's lost attempts is set to 0.

    Args:
        data: The bytes of an inline checkpoint; None if the bytes are in a store.
        keep: The value of the study's setting `keep` that the attempt has last read.
        objective: The study's objective, by which `keep` finds the best checkpoints. If None, only
            the newest two and the pinned checkpoints are kept, whatever `keep` says.

    Returns:
        The checkpoints that `keep` or the quota has removed, whose bytes may now be deleted. A
        duplicate request also returns checkpoints of the trial that were removed at other times.

    Raises:
        LeaseLost: The attempt no longer holds its trial; the caller should delete the bytes.
        CheckpointError: The checkpoint does not fit into the study's quota; nothing was stored, and
            the caller should delete the bytes.
    """
    try:
        with database.begin() as txn:
            held = leases.hold(txn, lease=lease)
            if held is None:
                return _saved_before(txn, lease, checkpoint)

            new = checkpoints.insert(
                txn,
                study_id=lease.study_id,
                trial_id=lease.trial_id,
                attempt=lease.attempt,  # the fence has checked the trial and the attempt
                what=checkpoint,
                data=data,
            )
            if data is None:
                uploads.end(txn, uuid=checkpoint.uuid)
            advanced = checkpoint.step > held.checkpoint_step
            checkpoints.set_to_restore(
                txn,
                trial_id=lease.trial_id,
                checkpoint_id=new.id,
                step=max(checkpoint.step, held.checkpoint_step),
                losses=0 if advanced else held.losses,
            )
            expired = _expire(txn, lease, new.id, keep, objective)
            if new.is_counted:
                expired += count_saved(txn, lease, checkpoint, expired=expired)
            return expired
    except Duplicate:
        with database.begin(write=False) as txn:
            return _saved_before(txn, lease, checkpoint)


def _expire(
    txn: Txn, lease: Lease, newest: int, keep: Keep, objective: Objective | None
) -> list[Checkpoint]:
    if keep.keeps_newest_only or objective is None:
        return checkpoints.expire(txn, trial_id=lease.trial_id, newest=newest)
    found = checkpoint_listing.of_trial(txn, trial_id=lease.trial_id)
    saved = [SavedState(row.id or 0, row.step, value) for row, value in found]
    expired = keep.expired(saved, objective)
    return checkpoints.expire_listed(txn, ids=expired) if expired else []


def _saved_before(txn: Txn, lease: Lease, checkpoint: Checkpoint) -> list[Checkpoint]:
    if checkpoints.by_uuid(txn, uuid=checkpoint.uuid) is None:
        raise lost(lease)
    expired = checkpoints.expired(txn, trial_id=lease.trial_id)
    known = {one.id for one in expired}
    return expired + [one for one in removed_before(txn, lease, checkpoint) if one.id not in known]
