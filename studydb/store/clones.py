"""Clones: new trials with the params and the config of an ended trial, whose row stays as it is."""

from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import checkpoint, tag, trial
from studydb.domain.life.selections import Selection
from studydb.domain.life.states import Origin, Reason, State
from studydb.store.trials import inserting

_PARENT = trial.c.id == sa.bindparam("parent", type_=sa.BigInteger)
_COPIED = (
    *("study_id", "params", "params_hash", "config", "changed", "space_version"),
    *("resource_class", "bracket", "replicate_of", "has_tags"),
)
_source = sa.bindparam("source", type_=sa.BigInteger)
_source_step = sa.func.coalesce(
    sa.select(checkpoint.c.step).where(checkpoint.c.id == _source).scalar_subquery(), 0
)
_NEW: dict[str, Any] = {
    "uuid": sa.bindparam("uuid", type_=sa.Text),
    "number": sa.bindparam("number", type_=sa.BigInteger),
    "state": State.PENDING,
    "origin": Origin.CLONE,
    "parent_id": trial.c.id,
    "counted": False,
    "priority": 0,
    "ready": True,
    "attempt": 0,
    "failures": 0,
    "losses": 0,
    "flush_no": 0,
    "checkpoint_id": _source,
    "source_checkpoint_id": _source,
    "checkpoint_step": _source_step,
    "n_results": 0,
    "created_at": now(),
} | {name: trial.c[name] for name in _COPIED}
_INSERT = Prepared(inserting(_NEW, _PARENT).returning(trial.c.id))
_COPY_TAGS = Prepared(
    sa.insert(tag).from_select(
        ["study_id", "trial_id", "key"],
        sa.select(tag.c.study_id, sa.bindparam("clone", type_=sa.BigInteger), tag.c.key).where(
            tag.c.study_id == sa.bindparam("study"),
            tag.c.trial_id == sa.bindparam("parent", type_=sa.BigInteger),
        ),
    )
)

_clone = trial.alias("clone")
_CLONES = Prepared(
    sa.select(_clone.c.number, _clone.c.ended_at)
    .where(_clone.c.study_id == sa.bindparam("study"), _clone.c.parent_id == sa.bindparam("parent"))
    .order_by(_clone.c.number)
)
_has_no_clone = ~sa.exists().where(
    _clone.c.study_id == sa.bindparam("study"), _clone.c.parent_id == trial.c.id
)
_CHOSEN = {
    Selection.ERRORED: trial.c.state == State.ERROR,
    Selection.CANCELLED: trial.c.reason == Reason.CANCELLED,
    Selection.FINISHED: sa.and_(
        trial.c.state == State.TERMINATED, trial.c.reason != Reason.CANCELLED
    ),
    Selection.ALL: trial.c.ended_at.is_not(None),
}
_SELECT = {
    selection: Prepared(
        sa.select(trial.c.number)
        .where(
            trial.c.study_id == sa.bindparam("study"),
            trial.c.number > sa.bindparam("after_number", type_=sa.BigInteger),
            condition,
            trial.c.invalidated_at.is_(None),
            _has_no_clone,
        )
        .order_by(trial.c.number)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )
    for selection, condition in _CHOSEN.items()
}


class Clone(NamedTuple):
    """A clone of a trial; it is live until it has ended."""

    number: int
    is_live: bool


def insert(
    txn: Txn, *, study_id: int, parent_id: int, uuid: str, number: int, source: int | None
) -> int:
    """
    Insert a PENDING clone with the tags of its parent; the caller has locked the study's row.

    Args:
        source: The checkpoint from which the clone begins; None to begin from scratch.

    Returns:
        The id of the clone.
    """
    row = txn.all(_INSERT, parent=parent_id, uuid=uuid, number=number, source=source)[0]
    txn.run(_COPY_TAGS, study=study_id, parent=parent_id, clone=row.id)
    return int(row.id)


def of_trial(txn: Txn, *, study_id: int, trial_id: int) -> list[Clone]:
    """Read the clones of a trial, oldest first."""
    rows = txn.all(_CLONES, study=study_id, parent=trial_id)
    return [Clone(row.number, row.ended_at is None) for row in rows]


def select(
    txn: Txn, *, study_id: int, selection: Selection, after_number: int, limit: int
) -> list[int]:
    """
    Read the numbers of a selection's first `limit` trials with numbers above `after_number`.

    Trials that are invalidated, or that have a clone, are left out.
    """
    rows = txn.all(_SELECT[selection], study=study_id, after_number=after_number, limit=limit)
    return [row.number for row in rows]
