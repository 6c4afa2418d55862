"""
Pins: which trials may still restore a checkpoint, so that no retention removes it.

A pin is a row; `checkpoint.pins` counts the rows. Transactions lock checkpoints after trials, by
ascending id, and before the study's row.
"""

from collections import Counter
from collections.abc import Sequence

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import checkpoint, pin

CLONE = "clone"
"""The reason of a pin: a clone begins from the checkpoint."""

_GIVEN = ("study_id", "checkpoint_id", "trial_id", "reason", "actor")

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


def count(txn: Txn, *, checkpoint_id: int) -> bool:
    """
    Count one more pin of a checkpoint, whose row is locked from then on; `insert` adds the pin.

    Returns:
        False if the checkpoint has been removed.
    """
    return txn.count(_COUNT_UNREMOVED, checkpoint=checkpoint_id) == 1


def insert(txn: Txn, *, study_id: int, checkpoint_id: int, trial_id: int, actor: str) -> None:
    """Insert the pin that `count` has counted, for a clone."""
    txn.run(
        _INSERT,
        study_id=study_id,
        checkpoint_id=checkpoint_id,
        trial_id=trial_id,
        reason=CLONE,
        actor=actor,
    )


def lock(txn: Txn, *, trial_id: int) -> None:
    """Lock the checkpoints that a locked trial pins, before the study's row is locked."""
    txn.all(_LOCK, trial=trial_id)


def release(txn: Txn, *, trial_ids: Sequence[int]) -> None:
    """Delete the pins of locked trials that will restore no pinned checkpoint any more."""
    released = Counter(row.checkpoint_id for row in txn.all(_RELEASE, trials=list(trial_ids)))
    for checkpoint_id, n in sorted(released.items()):
        txn.run(_COUNT, checkpoint=checkpoint_id, by=-n)
