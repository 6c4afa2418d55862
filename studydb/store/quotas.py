"""The quota of a study's checkpoints: their total size, and which of them may be removed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import Struct

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import by_id, checkpoint, study, trial
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.life.retention import read_keep
from studydb.domain.study_spec import DEFAULTS
from studydb.store import checkpoints
from studydb.store.studies import THIS, existing

MOST = 100
"""The most checkpoints that `oldest` reads at a time."""

_LOCK = Prepared(
    sa.select(study.c.name, study.c.settings, study.c.checkpoint_bytes)
    .where(THIS)
    .with_for_update(key_share=True)
)
_READ = Prepared(sa.select(study.c.name, study.c.settings, study.c.checkpoint_bytes).where(THIS))
_ADD = Prepared(
    sa.update(study)
    .where(THIS, study.c.checkpoint_bytes.is_not(None))
    .values(checkpoint_bytes=study.c.checkpoint_bytes + sa.bindparam("by", type_=sa.BigInteger))
)
_SUM = Prepared(
    sa.select(
        sa.cast(sa.func.coalesce(sa.func.sum(checkpoint.c.size_bytes), 0), sa.BigInteger).label("n")
    ).where(checkpoints.KEPT_OF_STUDY)
)
_STORE = Prepared(
    sa.update(study)
    .where(THIS)
    .values(checkpoint_bytes=sa.bindparam("to_bytes", type_=sa.BigInteger))
)
_OF_CHECKPOINT = Prepared(
    sa.select(checkpoint.c.study_id, checkpoint.c.size_bytes)
    .where(checkpoint.c.id == sa.bindparam("checkpoint"), checkpoint.c.removed_at.is_(None))
    .with_for_update(key_share=True)
)
_OLDEST = Prepared(
    checkpoints.OF_TRIAL.add_columns(trial.c.number, trial.c.ended_at)
    .where(
        checkpoints.KEPT_OF_STUDY,
        checkpoint.c.id > sa.bindparam("after_id", type_=sa.BigInteger),
        checkpoint.c.pins == 0,
        sa.or_(
            trial.c.ended_at.is_not(None), trial.c.checkpoint_id.is_distinct_from(checkpoint.c.id)
        ),
    )
    .order_by(checkpoint.c.id)
    .limit(MOST)
    .with_for_update(key_share=True, skip_locked=True, of=[checkpoint, trial])
)
"""
SKIP LOCKED: the caller has locked the study's row, which comes after trials and checkpoints in the
lock order. So the caller must not wait for the locks of trials and checkpoints.

A trial that has not ended keeps the checkpoint that is to be restored. If an attempt finds this
checkpoint corrupt, an older checkpoint is to be restored instead. To store this change in the
trial's row, the attempt must wait for the row's lock, which `_OLDEST` has taken. So no checkpoint
that is found here can become the one to restore.
"""

_REMOVED = Prepared(
    checkpoints.OF_TRIAL.add_columns(trial.c.number, trial.c.ended_at)
    .where(
        trial.c.study_id == sa.bindparam("study"),
        is_listed(trial.c.number, "numbers"),
        checkpoint.c.removed_at.is_not(None),
        checkpoint.c.corrupt_at.is_(None),
    )
    .order_by(by_id(checkpoint))
)


class Quota(Struct, frozen=True):
    """
    A study's quota.

    Attributes:
        limit_bytes: None if the study has no quota.
        used_bytes: The total size of the kept checkpoints; None if the study does not count it.
    """

    study: str
    limit_bytes: int | None
    used_bytes: int | None


class Removable(NamedTuple):
    """
    A checkpoint that may be removed, or was removed.

    Attributes:
        number: The number of its trial.
        is_over: Whether its trial has ended.
    """

    row: Checkpoint
    number: int
    is_over: bool


def lock(txn: Txn, *, study_id: int) -> Quota:
    """
    Lock the study's row, so that one transaction at a time changes the total size; read the quota.

    Raises:
        UnknownStudy: The study was deleted.
    """
    return _quota(existing(txn.first(_LOCK, study=study_id)))


def read(txn: Txn, *, study_id: int) -> Quota:
    """Read a study's quota."""
    return _quota(existing(txn.first(_READ, study=study_id)))


def add(txn: Txn, *, study_id: int, size_bytes: int) -> None:
    """Add bytes (negative for removed checkpoints) to the total size, if the study counts it."""
    txn.run(_ADD, study=study_id, by=size_bytes)


def subtract(txn: Txn, *, checkpoint_id: int) -> None:
    """
    Subtract a checkpoint's size from its study's total size.

    Call this before the checkpoint is marked as removed; if it is already marked, nothing changes.
    The checkpoint's row is locked, then the study's row.
    """
    row = txn.first(_OF_CHECKPOINT, checkpoint=checkpoint_id)
    if row is not None:
        add(txn, study_id=row.study_id, size_bytes=-row.size_bytes)


def lock_checkpoints(txn: Txn) -> None:
    """Wait for transactions that have locked or written checkpoints; keep others from doing so."""
    txn.lock_table(checkpoint)


def recount(txn: Txn, *, study_id: int, has_quota: bool) -> None:
    """Store the total size of a locked study's kept checkpoints; without a quota, stop counting."""
    total = txn.all(_SUM, study=study_id)[0].n if has_quota else None
    txn.run(_STORE, study=study_id, to_bytes=total)


def oldest(txn: Txn, *, study_id: int, after_id: int) -> list[Removable]:
    """
    Lock and read the oldest removable checkpoints with ids above `after_id`, at most `MOST`.

    Their trials are locked, too. A checkpoint is left out if another transaction has locked the
    checkpoint or its trial.
    """
    return _read(txn.all(_OLDEST, study=study_id, after_id=after_id))


def removed(txn: Txn, *, study_id: int, numbers: Sequence[int]) -> list[Removable]:
    """Read trials' removed checkpoints, whose bytes may still exist; omit corrupt checkpoints."""
    return _read(txn.all(_REMOVED, study=study_id, numbers=list(numbers)))


def _read(found: Sequence[Any]) -> list[Removable]:
    return [Removable(checkpoints.read(row), row.number, row.ended_at is not None) for row in found]


def _quota(row: Any) -> Quota:
    stored: Mapping[str, Any] = row.settings or {}
    keep = read_keep("keep", stored.get("keep") or DEFAULTS["keep"])
    return Quota(row.name, keep.quota_bytes, row.checkpoint_bytes)
