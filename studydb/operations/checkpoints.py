"""Mark a checkpoint corrupt; delete the rows of checkpoints whose bytes have been deleted."""

from collections.abc import Sequence

from studydb.db import Database, Txn
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Lease, Study
from studydb.operations.flushing import lost
from studydb.store import attempts, checkpoints, events, leases, pins, quotas


def mark_corrupt(
    database: Database,
    *,
    lease: Lease,
    checkpoint: Checkpoint,
    why: str = "",
    is_verified: bool = True,
) -> Checkpoint | None:
    """
    Mark a checkpoint whose bytes are corrupt, missing or unsigned, and record an event.

    The trial then restores the previous checkpoint. A duplicate request changes nothing.

    Args:
        why: The cause, which the event records.
        is_verified: Whether a key of this process verifies the signature. If not, a checkpoint of
            another trial is not marked, because the workers of that trial may have the key.

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

        before = previous(txn, checkpoint)
        is_next = held.checkpoint_id == checkpoint.id
        if is_next and checkpoint.trial_id != lease.trial_id:
            before = _move_pin(txn, lease, to=before)  # lock order: ascending checkpoint ids
        is_new = False
        if is_verified or checkpoint.trial_id == lease.trial_id:
            quotas.subtract(txn, checkpoint_id=checkpoint.id)
            is_new = checkpoints.mark_corrupt(txn, checkpoint_id=checkpoint.id)
        if not is_new and not is_next:
            return before  # a duplicate request

        checkpoints.set_to_restore(
            txn,
            trial_id=lease.trial_id,
            checkpoint_id=before.id if before else None,
            step=held.checkpoint_step,
            losses=held.losses,
        )
        if held.flush_no == 0:
            attempts.set_start(txn, lease=lease, step=before.step + 1 if before else 1)
        events.append(
            txn,
            study_id=lease.study_id,
            lease=lease,
            kind=EventKind.CHECKPOINT_CORRUPT,
            actor=Actor.WORKER,
            data={"url": checkpoint.url, "step": checkpoint.step} | ({"error": why} if why else {}),
        )
    return before


def previous(txn: Txn, checkpoint: Checkpoint) -> Checkpoint | None:
    """
    Find the newest kept checkpoint of the same trial that is older than this checkpoint.

    If there is none, find the checkpoint from which this trial began, if it is a kept checkpoint of
    another trial.
    """
    assert checkpoint.id is not None
    older = checkpoints.before(txn, trial_id=checkpoint.trial_id, checkpoint_id=checkpoint.id)
    return older or checkpoints.source(txn, trial_id=checkpoint.trial_id)


def newest_of(txn: Txn, *, checkpoint_id: int) -> Checkpoint | None:
    """
    Return the checkpoint with this id; if it is no longer kept, the one that `previous` finds.

    Returns:
        None if no checkpoint remains, or this checkpoint's row is deleted.
    """
    found = checkpoints.find(txn, checkpoint_id=checkpoint_id)
    if found is None:
        return None
    return checkpoints.before(
        txn, trial_id=found.trial_id, checkpoint_id=checkpoint_id + 1
    ) or checkpoints.source(txn, trial_id=found.trial_id)


def newest_in_directory(
    database: Database, study: Study, directory: str | None = None
) -> str | None:
    """
    Return the URL of the newest kept checkpoint that an attempt has saved in a directory.

    Args:
        directory: The directory's URL; None for any directory.
    """
    with database.begin(write=False, single=True) as txn:
        return checkpoints.newest_in_directory(txn, study_id=study.id, directory=directory)


def _move_pin(txn: Txn, lease: Lease, *, to: Checkpoint | None) -> Checkpoint | None:
    """
    Move a trial's pin from the checkpoint that it cannot restore to `to`, and let it begin there.

    Returns:
        `to`; None if `to` is None or was removed: the trial then begins from scratch.
    """
    to_id = None if to is None else to.id
    if to_id is not None and not pins.count(txn, checkpoint_id=to_id):
        to, to_id = None, None
    reason = pins.reason_of(txn, trial_id=lease.trial_id)
    pins.release(txn, trial_ids=[lease.trial_id])
    checkpoints.set_source(txn, trial_id=lease.trial_id, checkpoint_id=to_id)
    if to_id is not None:
        pins.insert(
            txn,
            study_id=lease.study_id,
            checkpoint_id=to_id,
            trial_id=lease.trial_id,
            actor=Actor.WORKER,
            reason=reason or pins.START,
        )
    return to


def delete_rows(database: Database, *, removed: Sequence[Checkpoint]) -> None:
    """Delete the rows of removed checkpoints whose bytes have been deleted."""
    with database.begin() as txn:
        checkpoints.delete_rows(txn, ids=[one.id for one in removed if one.id is not None])
