"""
Pins: a pinned checkpoint is kept, because a person wants it or a trial begins from it.

A pin is a row; `checkpoint.pins` counts a checkpoint's pins. Transactions lock checkpoints after
trials, by ascending id, and before the study's row.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import by_id, checkpoint, pin

CLONE = "clone"
"""The reason of a pin: a clone begins from the checkpoint."""

START = "start"
"""The reason of a pin: an enqueued trial begins from the checkpoint."""

PERSON = "person"
"""The reason of a pin: a person wants to keep the checkpoint; `trial_id` is NULL."""

_GIVEN = ("study_id", "checkpoint_id", "trial_id", "reason", "actor", "token")

_INSERT = Prepared(
    sa.insert(pin).values({name: sa.bindparam(name) for name in _GIVEN} | {"at": now()})
)
_COUNT = Prepared(
    sa.update(checkpoint)
    .where(checkpoint.c.id == sa.bindparam("checkpoint"))
    .values(pins=checkpoint.c.pins + sa.bindparam("by", type_=sa.Integer))
)
_COUNT_UNREMOVED = Prepared(
    sa.update(checkpoint)
    .where(checkpoint.c.id == sa.bindparam("checkpoint"), checkpoint.c.removed_at.is_(None))
    .values(pins=checkpoint.c.pins + 1)
    .returning(checkpoint.c.id)
)
_REASON = Prepared(sa.select(pin.c.reason).where(pin.c.trial_id == sa.bindparam("trial")))
_LOCK = Prepared(
    sa.select(checkpoint.c.id)
    .where(
        checkpoint.c.id.in_(
            sa.select(pin.c.checkpoint_id).where(pin.c.trial_id == sa.bindparam("trial"))
        )
    )
    .order_by(checkpoint.c.id)
    .with_for_update(key_share=True, of=checkpoint)
)
_RELEASE = Prepared(
    sa.delete(pin).where(is_listed(pin.c.trial_id, "trials")).returning(pin.c.checkpoint_id)
)
_OF_PEOPLE = Prepared(
    sa.select(checkpoint.c.id, checkpoint.c.step)
    .where(
        checkpoint.c.trial_id == sa.bindparam("trial"),
        checkpoint.c.pins > 0,
        sa.select(sa.func.count())
        .where(pin.c.checkpoint_id == checkpoint.c.id, pin.c.reason == PERSON)
        .scalar_subquery()
        > 0,
    )
    .order_by(by_id(checkpoint))
)
_REMOVE = Prepared(
    sa.delete(pin)
    .where(is_listed(pin.c.checkpoint_id, "ids"), pin.c.reason == PERSON)
    .returning(pin.c.checkpoint_id)
)


class Pinned(NamedTuple):
    """A checkpoint that a person has pinned."""

    id: int
    step: int


def count(txn: Txn, *, checkpoint_id: int) -> bool:
    """
    Add 1 to a checkpoint's `pins`, which locks the checkpoint's row; `insert` then adds the pin.

    Returns:
        False if the checkpoint has been removed, or has no row any more.
    """
    return txn.count(_COUNT_UNREMOVED, checkpoint=checkpoint_id) == 1


def insert(
    txn: Txn,
    *,
    study_id: int,
    checkpoint_id: int,
    trial_id: int | None,
    actor: str,
    reason: str,
    token: str | None = None,
) -> None:
    """
    Insert the pin that `count` has counted.

    Args:
        trial_id: The clone or enqueued trial that begins from the checkpoint; None for a person's
            pin.
        token: The token of a person's request to pin, which is UNIQUE; None for a trial's pin.
    """
    txn.run(
        _INSERT,
        study_id=study_id,
        checkpoint_id=checkpoint_id,
        trial_id=trial_id,
        reason=reason,
        actor=actor,
        token=token,
    )


def reason_of(txn: Txn, *, trial_id: int) -> str | None:
    """Read the reason of a trial's pin; None if the trial pins no checkpoint."""
    row = txn.first(_REASON, trial=trial_id)
    return None if row is None else row.reason


def lock(txn: Txn, *, trial_id: int) -> None:
    """Lock the checkpoints that a locked trial pins; call this before the study's row is locked."""
    txn.all(_LOCK, trial=trial_id)


def release(txn: Txn, *, trial_ids: Sequence[int]) -> None:
    """
    Delete the pins for locked trials, and subtract them from `checkpoint.pins`.

    These trials will not restore the pinned checkpoints any more.
    """
    released = txn.all(_RELEASE, trials=list(trial_ids))
    _uncount(txn, [row.checkpoint_id for row in released])


def of_people(txn: Txn, *, trial_id: int) -> list[Pinned]:
    """Find the checkpoints of a locked trial that people have pinned, in the order of the saves."""
    return [Pinned(row.id, row.step) for row in txn.all(_OF_PEOPLE, trial=trial_id)]


def remove(txn: Txn, *, checkpoint_ids: Sequence[int]) -> None:
    """Delete people's pins of a locked trial's checkpoints, and subtract them from `pins`."""
    removed = txn.all(_REMOVE, ids=list(checkpoint_ids))
    _uncount(txn, [row.checkpoint_id for row in removed])


def _uncount(txn: Txn, checkpoint_ids: Sequence[int]) -> None:
    for checkpoint_id, n in sorted(Counter(checkpoint_ids).items()):
        txn.run(_COUNT, checkpoint=checkpoint_id, by=-n)
