"""Mark a checkpoint corrupt; delete the rows of checkpoints whose bytes have been deleted."""

from collections.abc import Sequence

from studydb.db import Database
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Checkpoint, Lease
from studydb.operations.flushing import lost
from studydb.store import checkpoints, events, leases


def mark_corrupt(
    database: Database, *, lease: Lease, checkpoint: Checkpoint, why: str = ""
) -> Checkpoint | None:
    """
    Mark a checkpoint whose bytes are corrupt, missing or unsigned, and record an event.

    Args:
        why: The cause, which the event records.

    Returns:
        The previous checkpoint, to restore instead; None if the attempt starts from scratch.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    assert checkpoint.id is not None
    with database.begin() as txn:
        held = leases.hold(txn, lease=lease)
        if held is None:
            raise lost(lease)

        before = checkpoints.before(txn, trial_id=lease.trial_id, checkpoint_id=checkpoint.id)
        if not checkpoints.mark_corrupt(txn, checkpoint_id=checkpoint.id):
            return before  # a duplicate request

        checkpoints.set_to_restore(
            txn,
            trial_id=lease.trial_id,
            checkpoint_id=before.id if before else None,
            step=held.checkpoint_step,
            losses=held.losses,
        )
        events.append(
            txn,
            study_id=lease.study_id,
            lease=lease,
            kind=EventKind.CHECKPOINT_CORRUPT,
            actor=Actor.WORKER,
            data={"url": checkpoint.url, "step": checkpoint.step} | ({"error": why} if why else {}),
        )
    return before


def delete_rows(database: Database, *, removed: Sequence[Checkpoint]) -> None:
    """Delete the rows of expired checkpoints whose bytes have been deleted."""
    with database.begin() as txn:
        checkpoints.delete_rows(txn, ids=[one.id for one in removed if one.id is not None])
