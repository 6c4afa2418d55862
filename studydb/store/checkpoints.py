"""Rows of checkpoints. A row is inserted after the bytes are in their store, or with the bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import by_id, checkpoint, study, trial
from studydb.domain.checkpoint import Checkpoint

_FIELDS = tuple(name for name in Checkpoint.__struct_fields__ if name not in ("id", "trial_uuid"))
_COLUMNS = (checkpoint.c.id, *(checkpoint.c[name] for name in _FIELDS))
OF_TRIAL = sa.select(*_COLUMNS, trial.c.uuid.label("trial_uuid")).join(
    trial, trial.c.id == checkpoint.c.trial_id
)

_is_counted = (
    sa.select(study.c.checkpoint_bytes.is_not(None))
    .where(study.c.id == sa.bindparam("study_id"))
    .scalar_subquery()
)
_INSERT = Prepared(
    sa.insert(checkpoint)
    .values(
        {name: sa.bindparam(name) for name in (*_FIELDS, "study_id", "data")}
        | {"pins": 0, "created_at": now()}
    )
    .returning(checkpoint.c.id, _is_counted.label("is_counted"))
)

_SET_TO_RESTORE = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(
        checkpoint_id=sa.bindparam("to_checkpoint"),
        checkpoint_step=sa.bindparam("to_step"),
        losses=sa.bindparam("to_losses"),
        suspect_at=None,
    )
)

_SET_START = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(
        checkpoint_id=sa.bindparam("to_checkpoint"),
        checkpoint_step=sa.bindparam("to_step"),
        source_checkpoint_id=sa.bindparam("to_source", type_=sa.BigInteger),
    )
)

_clone = trial.alias("clone")
_other = checkpoint.alias("other")
_before_the_newest = (
    sa.select(sa.func.max(_other.c.id))
    .where(
        _other.c.trial_id == sa.bindparam("trial"),
        _other.c.id < sa.bindparam("newest"),
        _other.c.removed_at.is_(None),
    )
    .scalar_subquery()
)

_EXPIRE = Prepared(
    sa.update(checkpoint)
    .where(
        checkpoint.c.trial_id == sa.bindparam("trial"),
        checkpoint.c.id < _before_the_newest,
        checkpoint.c.pins == 0,
        checkpoint.c.removed_at.is_(None),
    )
    .values(removed_at=now(), data=None)
    .returning(*_COLUMNS)
)

_EXPIRE_LISTED = Prepared(
    sa.update(checkpoint)
    .where(
        is_listed(checkpoint.c.id, "ids"),
        checkpoint.c.pins == 0,
        checkpoint.c.removed_at.is_(None),
    )
    .values(removed_at=now(), data=None)
    .returning(*_COLUMNS)
)

_TO_DISCARD = Prepared(
    sa.select(checkpoint.c.id, checkpoint.c.size_bytes)
    .where(
        checkpoint.c.trial_id == sa.bindparam("trial"),
        checkpoint.c.pins == 0,
        checkpoint.c.removed_at.is_(None),
    )
    .order_by(by_id(checkpoint))
    .with_for_update(key_share=True)
)
_DISCARD = Prepared(
    sa.update(checkpoint)
    .where(is_listed(checkpoint.c.id, "ids"))
    .values(removed_at=now(), data=None)
)
_kept = checkpoint.alias("kept")
_newest_kept = (
    sa.select(sa.func.max(_kept.c.id))
    .where(_kept.c.trial_id == trial.c.id, _kept.c.removed_at.is_(None))
    .scalar_subquery()
)
_RESTORE_KEPT = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"), is_listed(trial.c.checkpoint_id, "ids"))
    .values(checkpoint_id=_newest_kept)
)

_EXPIRED = Prepared(
    sa.select(*_COLUMNS)
    .where(
        checkpoint.c.trial_id == sa.bindparam("trial"),
        checkpoint.c.removed_at.is_not(None),
        checkpoint.c.corrupt_at.is_(None),
    )
    .order_by(checkpoint.c.id)
)

_REMOVED = Prepared(
    OF_TRIAL.where(
        is_listed(checkpoint.c.trial_id, "trials"),
        checkpoint.c.removed_at.is_not(None),
        checkpoint.c.corrupt_at.is_(None),
        checkpoint.c.pins == 0,
    ).order_by(checkpoint.c.trial_id, by_id(checkpoint))
)
_FIND = Prepared(OF_TRIAL.where(checkpoint.c.id == sa.bindparam("checkpoint")))
_BY_UUID = Prepared(sa.select(*_COLUMNS).where(checkpoint.c.uuid == sa.bindparam("by_uuid")))
_DATA = Prepared(sa.select(checkpoint.c.data).where(checkpoint.c.id == sa.bindparam("checkpoint")))

_CORRUPT = Prepared(
    sa.update(checkpoint)
    .where(checkpoint.c.id == sa.bindparam("checkpoint"), checkpoint.c.corrupt_at.is_(None))
    .values(corrupt_at=now(), removed_at=now())
    .returning(checkpoint.c.id)
)

KEPT_OF_STUDY = sa.and_(
    checkpoint.c.study_id == sa.bindparam("study"),
    checkpoint.c.removed_at.is_(None),
    # True for all rows; PostgreSQL uses the index `checkpoint_kept` only with this condition.
    checkpoint.c.study_id > sa.literal_column("0"),
)
_start = sa.bindparam("start", type_=sa.Text)
_IN_DIRECTORY = Prepared(
    sa.select(checkpoint.c.url)
    .where(
        KEPT_OF_STUDY,
        checkpoint.c.attempt > sa.literal_column("0"),
        # No LIKE, because a URL may contain "%" or "_".
        sa.func.substr(checkpoint.c.url, 1, sa.func.length(_start)) == _start,
    )
    .order_by(checkpoint.c.id.desc())
    .limit(1)
)

_SOURCE = Prepared(
    OF_TRIAL.where(
        checkpoint.c.id
        == sa.select(_clone.c.source_checkpoint_id)
        .where(_clone.c.id == sa.bindparam("trial"))
        .scalar_subquery(),
        checkpoint.c.removed_at.is_(None),
    )
)
_SET_SOURCE = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(source_checkpoint_id=sa.bindparam("to_source", type_=sa.BigInteger))
)

_BEFORE = Prepared(
    OF_TRIAL.where(
        checkpoint.c.trial_id == sa.bindparam("trial"),
        checkpoint.c.id < sa.bindparam("checkpoint"),
        checkpoint.c.removed_at.is_(None),
    )
    .order_by(checkpoint.c.id.desc())
    .limit(1)
)

_STUDIES = Prepared(
    sa.select(study.c.id, study.c.name)
    .join(checkpoint, checkpoint.c.study_id == study.c.id)
    .where(is_listed(checkpoint.c.id, "ids"))
    .distinct()
)

_DELETE_ROWS = Prepared(sa.delete(checkpoint).where(is_listed(checkpoint.c.id, "ids")))


class Inserted(NamedTuple):
    """A new row's id, and whether the study counts the bytes of its checkpoints."""

    id: int
    is_counted: bool


def insert(
    txn: Txn, *, study_id: int, trial_id: int, attempt: int, what: Checkpoint, data: bytes | None
) -> Inserted:
    """
    Insert the row of a checkpoint that an attempt saved, or a person uploaded (attempt 0).

    Raises:
        Duplicate: The same save was already stored (its reply was lost).
    """
    values = {name: getattr(what, name) for name in _FIELDS}
    values |= {"trial_id": trial_id, "attempt": attempt}
    row = txn.all(_INSERT, **values, study_id=study_id, data=data)[0]
    return Inserted(int(row.id), bool(row.is_counted))


def set_to_restore(
    txn: Txn, *, trial_id: int, checkpoint_id: int | None, step: int, losses: int
) -> None:
    """
    Store which checkpoint the next attempt of a held trial restores, and reset `suspect_at`.

    Args:
        step: The highest step that the trial has saved, even if `checkpoint_id` has a lower step.
        losses: The new value of `trial.losses`; see `TrialFacts`.
    """
    txn.run(
        _SET_TO_RESTORE, trial=trial_id, to_checkpoint=checkpoint_id, to_step=step, to_losses=losses
    )


def set_start(
    txn: Txn, *, trial_id: int, checkpoint_id: int, step: int, source_id: int | None
) -> None:
    """
    Store from which checkpoint a new trial begins.

    Args:
        source_id: The checkpoint's id if the checkpoint belongs to another trial; else None.
    """
    txn.run(
        _SET_START,
        trial=trial_id,
        to_checkpoint=checkpoint_id,
        to_step=step,
        to_source=source_id,
    )


def expire(txn: Txn, *, trial_id: int, newest: int) -> list[Checkpoint]:
    """
    Mark a trial's checkpoints as removed, except pinned checkpoints and the newest two.

    An attempt restores the second newest checkpoint if the newest is corrupt.

    Returns:
        The removed checkpoints. Bytes in a row are deleted now; bytes in a store of files may be
        deleted only after the commit.
    """
    return [read(row) for row in txn.all(_EXPIRE, trial=trial_id, newest=newest)]


def expire_listed(txn: Txn, *, ids: Sequence[int]) -> list[Checkpoint]:
    """
    Mark checkpoints of locked trials as removed, except pinned ones; see `expire`.

    The caller has locked the trials, because the statement locks the checkpoints in no fixed order,
    which could otherwise cause a deadlock.
    """
    found = [read(row) for row in txn.all(_EXPIRE_LISTED, ids=list(ids))]
    return sorted(found, key=lambda one: one.id or 0)


def discard(txn: Txn, *, trial_id: int) -> int:
    """
    Mark all checkpoints of a locked, ended trial as removed, except pinned ones.

    If `trial.checkpoint_id` names a removed checkpoint, `restore_kept` replaces the id.

    The rows are locked first, by ascending id. Otherwise a retry of this trial's clone could pin a
    checkpoint between the statement that finds it and the statement that removes it.

    Returns:
        The sum of the sizes of the removed checkpoints, in bytes.
    """
    found = txn.all(_TO_DISCARD, trial=trial_id)
    ids = [row.id for row in found]
    txn.run(_DISCARD, ids=ids)
    restore_kept(txn, trial_id=trial_id, removed_ids=ids)
    return sum(row.size_bytes for row in found)


def restore_kept(txn: Txn, *, trial_id: int, removed_ids: Sequence[int]) -> None:
    """
    Replace a locked trial's `checkpoint_id` if it names one of the removed checkpoints.

    The new value is the trial's newest kept checkpoint; NULL if the trial has none.
    """
    txn.run(_RESTORE_KEPT, trial=trial_id, ids=list(removed_ids))


def expired(txn: Txn, *, trial_id: int) -> list[Checkpoint]:
    """Read the removed checkpoints of a trial, except corrupt checkpoints."""
    return [read(row) for row in txn.all(_EXPIRED, trial=trial_id)]


def removed(txn: Txn, *, trial_ids: Sequence[int]) -> list[Checkpoint]:
    """Read the removed checkpoints of trials, ordered by trial id; omit corrupt and pinned ones."""
    return [read(row) for row in txn.all(_REMOVED, trials=list(trial_ids))]


def newest_in_directory(txn: Txn, *, study_id: int, directory: str | None = None) -> str | None:
    """
    Find the newest kept checkpoint that an attempt has saved in a directory; return its URL.

    Args:
        directory: The directory's URL; None for any directory.
    """
    start = "file:" if directory is None else f"{directory.rstrip('/')}/"
    row = txn.first(_IN_DIRECTORY, study=study_id, start=start)
    return None if row is None else str(row.url)


def find(txn: Txn, *, checkpoint_id: int) -> Checkpoint | None:
    """Find one checkpoint, without its bytes."""
    row = txn.first(_FIND, checkpoint=checkpoint_id)
    return None if row is None else read(row)


def by_uuid(txn: Txn, *, uuid: str) -> Checkpoint | None:
    """Find the checkpoint that a save with this uuid stored."""
    row = txn.first(_BY_UUID, by_uuid=uuid)
    return None if row is None else read(row)


def data(txn: Txn, *, checkpoint_id: int) -> bytes | None:
    """Read the bytes of a checkpoint from its row; None if the row is gone or holds no bytes."""
    row = txn.first(_DATA, checkpoint=checkpoint_id)
    return None if row is None or row.data is None else bytes(row.data)


def mark_corrupt(txn: Txn, *, checkpoint_id: int) -> bool:
    """Mark a checkpoint as corrupt and removed; False if it was marked before or has no row."""
    return txn.count(_CORRUPT, checkpoint=checkpoint_id) == 1


def before(txn: Txn, *, trial_id: int, checkpoint_id: int) -> Checkpoint | None:
    """Find a trial's newest checkpoint that is older than `checkpoint_id` and is not removed."""
    row = txn.first(_BEFORE, trial=trial_id, checkpoint=checkpoint_id)
    return None if row is None else read(row)


def source(txn: Txn, *, trial_id: int) -> Checkpoint | None:
    """
    Find the checkpoint from which a trial began, if it is a checkpoint of another trial.

    Returns:
        None if the trial did not begin from such a checkpoint, or the checkpoint was removed.
    """
    row = txn.first(_SOURCE, trial=trial_id)
    return None if row is None else read(row)


def set_source(txn: Txn, *, trial_id: int, checkpoint_id: int | None) -> None:
    """
    Store from which checkpoint of another trial a held trial begins.

    Args:
        checkpoint_id: None if the trial begins from no other trial's checkpoint.
    """
    txn.run(_SET_SOURCE, trial=trial_id, to_source=checkpoint_id)


def studies_of(txn: Txn, *, ids: Sequence[int]) -> dict[int, str]:
    """Find the studies of checkpoints; return the studies' names by the studies' ids."""
    return {row.id: row.name for row in txn.all(_STUDIES, ids=list(ids))}


def delete_rows(txn: Txn, *, ids: Sequence[int]) -> None:
    """Delete the rows of removed checkpoints whose bytes have been deleted."""
    txn.run(_DELETE_ROWS, ids=list(ids))


def read(row: Any) -> Checkpoint:
    values = {name: getattr(row, name) for name in _FIELDS}
    return Checkpoint(**values, id=row.id, trial_uuid=getattr(row, "trial_uuid", None))
