"""Record a checkpoint whose bytes are safe."""

from collections.abc import Sequence

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.records import Checkpoint, Lease
from studydb.operations.flushing import lost
from studydb.store import checkpoints, events, leases


def save(
    database: Database, *, lease: Lease, checkpoint: Checkpoint, data: bytes | None = None
) -> list[Checkpoint]:
    """
    Make a checkpoint the one that the next attempt begins from.

    Allowed while a verdict stands: a stopped attempt may save its last state. A checkpoint beyond
    every earlier one forgives the trial's losses.

    Args:
        data: The bytes, when they are kept in the row.

    Returns:
        The older checkpoints that nobody will ask for again, whose bytes may now be deleted.

    Raises:
        LeaseLost: The attempt no longer holds its trial; delete the bytes.
    """
    try:
        with database.begin() as txn:
            held = leases.hold(txn, lease=lease)
            if held is None:
                return _saved_before(txn, lease, checkpoint)

            row_id = checkpoints.insert(txn, lease=lease, what=checkpoint, data=data)
            beyond = checkpoint.step > held.checkpoint_step
            checkpoints.point(
                txn,
                trial_id=lease.trial_id,
                checkpoint_id=row_id,
                step=max(checkpoint.step, held.checkpoint_step),
                losses=0 if beyond else held.losses,
            )
            return checkpoints.retire(txn, trial_id=lease.trial_id, newest=row_id)
    except Duplicate:
        with database.begin(write=False) as txn:
            return _saved_before(txn, lease, checkpoint)


def _saved_before(txn: Txn, lease: Lease, checkpoint: Checkpoint) -> list[Checkpoint]:
    if checkpoints.by_uuid(txn, uuid=checkpoint.uuid) is None:
        raise lost(lease)
    return checkpoints.retired(txn, trial_id=lease.trial_id)


def condemn(
    database: Database, *, lease: Lease, checkpoint: Checkpoint, why: str = ""
) -> Checkpoint | None:
    """
    Give up a checkpoint that proved corrupt, missing or unsigned, with an event.

    Args:
        why: What was wrong with it, for the event.

    Returns:
        The one before it, which the attempt restores instead; None to start from scratch.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    assert checkpoint.id is not None
    with database.begin() as txn:
        held = leases.hold(txn, lease=lease)
        if held is None:
            raise lost(lease)

        before = checkpoints.before(txn, trial_id=lease.trial_id, checkpoint_id=checkpoint.id)
        if not checkpoints.condemn(txn, checkpoint_id=checkpoint.id):
            return before  # sent again

        checkpoints.point(
            txn,
            trial_id=lease.trial_id,
            checkpoint_id=before.id if before else None,
            step=held.checkpoint_step,
            losses=held.losses,
        )
        events.append(
            txn,
            study_id=lease.study_id,
            trial_id=lease.trial_id,
            attempt=lease.attempt,
            kind="checkpoint corrupt",
            actor="worker",
            data={"url": checkpoint.url, "step": checkpoint.step} | ({"error": why} if why else {}),
        )
    return before


def forget(database: Database, *, removed: Sequence[Checkpoint]) -> None:
    """Delete the rows of retired checkpoints whose bytes are gone."""
    with database.begin() as txn:
        checkpoints.forget(txn, ids=[one.id for one in removed if one.id is not None])
