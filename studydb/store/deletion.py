"""Delete a study's rows, children before parents."""

from typing import NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db import decision_schema as decisions
from studydb.db import schema as tables
from studydb.db.dialect import is_listed, now
from studydb.store import pins

TRIALS_PER_TRANSACTION = 500

MOST_NEEDING = 5
"""The most trials that the error of a refused deletion names."""

_of_study = (
    sa.select(tables.trial.c.id)
    .where(tables.trial.c.study_id == sa.bindparam("study"))
    .order_by(tables.trial.c.number)
)
_ANY = Prepared(_of_study.limit(1))
_SOME = Prepared(_of_study.limit(sa.bindparam("limit", type_=sa.Integer)).with_for_update())
"""Locks the trials that it selects, by ascending number, which is also the order of their ids."""

_THIS_STUDY = tables.study.c.id == sa.bindparam("study")
_MARK_DELETING = Prepared(sa.update(tables.study).where(_THIS_STUDY).values(deleting_at=now()))
_LOCK_STUDY = Prepared(
    sa.select(tables.study.c.id).where(tables.study.c.id == sa.bindparam("study")).with_for_update()
)
"""The lock also waits for transactions that have inserted rows which refer to the study."""

_RESULTS = Prepared(
    sa.delete(tables.result).where(
        tables.result.c.study_id == sa.bindparam("study"),
        is_listed(tables.result.c.trial_id, "ids"),
    )
)

_TAGS = Prepared(
    sa.delete(tables.tag).where(
        tables.tag.c.study_id == sa.bindparam("study"), is_listed(tables.tag.c.trial_id, "ids")
    )
)

_PINS = Prepared(
    sa.delete(tables.pin).where(
        tables.pin.c.checkpoint_id.in_(
            sa.select(tables.checkpoint.c.id).where(is_listed(tables.checkpoint.c.trial_id, "ids"))
        )
    )
)

_NEEDING = Prepared(
    sa.select(tables.study.c.name, tables.trial.c.number)
    .select_from(tables.checkpoint)
    .join(tables.pin, tables.pin.c.checkpoint_id == tables.checkpoint.c.id)
    .join(tables.trial, tables.trial.c.id == tables.pin.c.trial_id)
    .join(tables.study, tables.study.c.id == tables.pin.c.study_id)
    .where(
        tables.checkpoint.c.study_id == sa.bindparam("study"),
        # True for all rows; PostgreSQL uses the index `checkpoint_kept` only with this condition.
        tables.checkpoint.c.study_id > sa.literal_column("0"),
        tables.checkpoint.c.removed_at.is_(None),
        tables.checkpoint.c.pins > 0,
        tables.pin.c.study_id != sa.bindparam("study"),
    )
    .distinct()
    .order_by(tables.study.c.name, tables.trial.c.number)
    .limit(MOST_NEEDING)
)

_OF_TRIALS = (
    _PINS,
    *(
        Prepared(sa.delete(table).where(is_listed(column, "ids")))
        for table, column in (
            (decisions.running_mean, decisions.running_mean.c.trial_id),
            (tables.log_chunk, tables.log_chunk.c.trial_id),
            (tables.checkpoint, tables.checkpoint.c.trial_id),
            (tables.attempt, tables.attempt.c.trial_id),
            (tables.trial, tables.trial.c.id),
        )
    ),
)

_study_rungs = sa.select(decisions.rung.c.id).where(
    decisions.rung.c.study_id == sa.bindparam("study")
)
_study_trainables = sa.select(tables.trainable.c.id).where(
    tables.trainable.c.study_id == sa.bindparam("study")
)
_REST = (
    Prepared(
        sa.delete(decisions.rung_entry).where(decisions.rung_entry.c.rung_id.in_(_study_rungs))
    ),
    Prepared(
        sa.delete(tables.signature).where(tables.signature.c.trainable_id.in_(_study_trainables))
    ),
    *(
        Prepared(sa.delete(table).where(table.c.study_id == sa.bindparam("study")))
        for table in (
            decisions.rung,
            decisions.bracket,
            decisions.population,
            decisions.lineage,
            decisions.resource_class,
            tables.upload,
            tables.trainable,
            tables.search_space,
            tables.counter,
            tables.worker,
            tables.event,
            tables.note,
            tables.tag,
        )
    ),
    Prepared(sa.delete(tables.study).where(tables.study.c.id == sa.bindparam("study"))),
    # `proposal` has no foreign key, so its rows can go last; after `lock_study` none are added.
    Prepared(
        sa.delete(decisions.proposal).where(decisions.proposal.c.study_id == sa.bindparam("study"))
    ),
)


class Needing(NamedTuple):
    """A trial of another study; a checkpoint of the study to be deleted is pinned for the trial."""

    study: str
    number: int


def mark_deleting(txn: Txn, *, study_id: int) -> None:
    """
    Store that the deletion of a study has begun.

    From then on, no new trial may begin from a checkpoint of the study, and no checkpoint may be
    uploaded for a new trial of the study.
    """
    txn.run(_MARK_DELETING, study=study_id)


def needing(txn: Txn, *, study_id: int) -> list[Needing]:
    """Find up to 5 trials of other studies for which checkpoints of this study are pinned."""
    return [Needing(row.name, row.number) for row in txn.all(_NEEDING, study=study_id)]


def lock_study(txn: Txn, *, study_id: int) -> None:
    """Until `txn` ends, keep other transactions from adding rows that refer to the study."""
    txn.all(_LOCK_STUDY, study=study_id)


def has_trials(txn: Txn, *, study_id: int) -> bool:
    return txn.first(_ANY, study=study_id) is not None


def delete_some_trials(txn: Txn, *, study_id: int) -> None:
    """
    Delete some trials, their attempts, results, checkpoints, pins, tags, logs and running means.

    At most `TRIALS_PER_TRANSACTION` trials are deleted. They are locked first. Otherwise an attempt
    that still runs could store a result, or a retry could pin a checkpoint, after the trials'
    results or pins have been deleted.
    """
    ids = [row.id for row in txn.all(_SOME, study=study_id, limit=TRIALS_PER_TRANSACTION)]
    pins.release(txn, trial_ids=ids)  # these trials may pin checkpoints of other studies
    for statement in (_RESULTS, _TAGS):
        txn.run(statement, study=study_id, ids=ids)
    for statement in _OF_TRIALS:
        txn.run(statement, ids=ids)


def delete_rest(txn: Txn, *, study_id: int) -> None:
    """Delete a study whose trials are deleted, and all its other rows."""
    for statement in _REST:
        txn.run(statement, study=study_id)
