"""Keep a study's checkpoints within its quota at each save; recount and describe their bytes."""

import shlex
from collections.abc import Sequence
from itertools import groupby

from studydb.db import Database, Txn
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.errors import CheckpointError
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Lease, Study
from studydb.domain.sizes import size_word
from studydb.domain.text.display import size_text
from studydb.store import checkpoints, events, quotas
from studydb.store.quotas import Quota, Removable


def count_saved(
    txn: Txn, lease: Lease, saved: Checkpoint, *, expired: Sequence[Checkpoint]
) -> list[Checkpoint]:
    """
    Count a new checkpoint; if the quota is exceeded, remove the oldest removable checkpoints.

    The study's row is locked, so the saves of a study with a quota take turns.

    Args:
        expired: The checkpoints that retention has removed in this transaction.

    Returns:
        The removed checkpoints, whose bytes may be deleted after the commit.

    Raises:
        CheckpointError: The new checkpoint would not fit even if all removable checkpoints that no
            other transaction has locked were removed. The transaction must be rolled back.
    """
    quota = quotas.lock(txn, study_id=lease.study_id)
    freed_bytes = sum(one.size_bytes for one in expired)
    used_bytes = (quota.used_bytes or 0) + saved.size_bytes - freed_bytes
    removed: list[Checkpoint] = []
    if quota.limit_bytes is not None and used_bytes > quota.limit_bytes:
        removed = _make_room(txn, lease, saved, quota, used_bytes - quota.limit_bytes)
        used_bytes -= sum(one.size_bytes for one in removed)
    quotas.add(txn, study_id=lease.study_id, size_bytes=used_bytes - (quota.used_bytes or 0))
    return removed


def removed_before(txn: Txn, lease: Lease, saved: Checkpoint) -> list[Checkpoint]:
    """Read the checkpoints that were removed to make room for `saved` and still have their rows."""
    recorded = events.data_of(txn, token=saved.uuid)
    if not recorded:
        return []
    removed = {(number, step) for number, step in recorded["removed"]}
    numbers = sorted({number for number, _ in removed})
    found = quotas.removed(txn, study_id=lease.study_id, numbers=numbers)
    return [one.row for one in found if (one.number, one.row.step) in removed]


def recount(database: Database, study: Study) -> None:
    """Sum up the bytes of kept checkpoints again if the study has a quota; saves wait meanwhile."""
    with database.begin() as txn:
        quota = quotas.lock(txn, study_id=study.id)
        if quota.limit_bytes is None:
            txn.abandon()
            return
        quotas.recount(txn, study_id=study.id, has_quota=True)


def describe(txn: Txn, study: Study) -> list[str]:
    """Describe what the quota allows and how much of it is used; empty without a quota."""
    quota = quotas.read(txn, study_id=study.id)
    if quota.limit_bytes is None:
        return []
    return [f"checkpoints {size_text(quota.used_bytes or 0)} of {size_text(quota.limit_bytes)}"]


def _make_room(
    txn: Txn, lease: Lease, saved: Checkpoint, quota: Quota, needed_bytes: int
) -> list[Checkpoint]:
    chosen: list[Removable] = []
    after_id = 0
    while needed_bytes > 0:
        page = quotas.oldest(txn, study_id=lease.study_id, after_id=after_id)
        if not page:
            raise CheckpointError(_refusal(saved, quota))
        for one in page:
            if needed_bytes > 0:
                chosen.append(one)
                needed_bytes -= one.row.size_bytes
        after_id = page[-1].row.id or 0
    _remove(txn, chosen)
    _record(txn, lease, saved, quota, chosen)
    return [one.row for one in chosen]


def _remove(txn: Txn, chosen: Sequence[Removable]) -> None:
    ids = [one.row.id for one in chosen if one.row.id is not None]
    checkpoints.expire_listed(txn, ids=ids)
    ended = sorted(one.row.trial_id for one in chosen if one.is_over)
    for trial_id, _ in groupby(ended):
        checkpoints.restore_kept(txn, trial_id=trial_id, removed_ids=ids)


def _record(
    txn: Txn, lease: Lease, saved: Checkpoint, quota: Quota, chosen: Sequence[Removable]
) -> None:
    events.append(
        txn,
        study_id=lease.study_id,
        lease=lease,
        kind=EventKind.QUOTA_REACHED,
        actor=Actor.WORKER,
        data={
            "quota": quota.limit_bytes,
            "removed": [[one.number, one.row.step] for one in chosen],
            "size_bytes": sum(one.row.size_bytes for one in chosen),
        },
        token=saved.uuid,
    )


def _refusal(saved: Checkpoint, quota: Quota) -> str:
    name, limit = shlex.quote(quota.study), size_word(quota.limit_bytes or 0)
    return (
        f"The checkpoint of step {saved.step} ({size_text(saved.size_bytes)}) does not fit into "
        f"the quota of {limit}: {size_text(quota.used_bytes or 0)} are kept, and too few of "
        "these bytes may be removed. Pinned checkpoints stay, and so does the newest checkpoint of "
        "each unfinished trial. Training continues, and any earlier checkpoint is kept. Raise the "
        f"quota by `studydb set {name} keep=…`, or remove pins that `studydb checkpoints {name}` "
        "lists."
    )
