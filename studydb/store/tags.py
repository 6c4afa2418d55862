"""Tags of trials: texts by which people group trials. Each tag is a row that SQL can search."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, texts_of
from studydb.db.schema import BY_ID, tag, trial

# These columns are written with their table, because SQLAlchemy omits a column's table in RETURNING
# on SQLite. In the subquery below, `study_id` would then mean the column of `tag`.
_study_id = sa.literal_column("trial.study_id", sa.BigInteger)
_trial_id = sa.literal_column("trial.id", sa.BigInteger)

OF_TRIAL = texts_of(
    sa.select(tag.c.key.label("text")).where(
        tag.c.study_id == _study_id, tag.c.trial_id == _trial_id
    )
).label("tags")
"""A trial's tags, as an expression for statements that read or change the trial's row."""

_OF_TRIAL = Prepared(sa.select(OF_TRIAL).where(trial.c.id == sa.bindparam("trial")))

_INSERT = Prepared(
    sa.insert(tag).values(
        study_id=sa.bindparam("study_id"),
        trial_id=sa.bindparam("trial_id"),
        key=sa.bindparam("key"),
    )
)


_IS_NOT_MARKED = (is_listed(trial.c.id, "ids"), trial.c.has_tags.is_(None))
_LOCK_UNMARKED = Prepared(
    sa.select(trial.c.id).where(*_IS_NOT_MARKED).order_by(BY_ID).with_for_update(key_share=True)
)
_MARK = Prepared(sa.update(trial).where(*_IS_NOT_MARKED).values(has_tags=True))


def insert(txn: Txn, *, study_id: int, trial_id: int, tags: Sequence[str]) -> None:
    """Give a new trial its tags; the caller has locked the study's row."""
    for key in tags:
        txn.run(_INSERT, study_id=study_id, trial_id=trial_id, key=key)
    if tags:
        txn.run(_MARK, ids=[trial_id])


def of_trial(txn: Txn, *, trial_id: int) -> tuple[str, ...]:
    """Read the tags of a trial; () if the study was deleted meanwhile."""
    row = txn.first(_OF_TRIAL, trial=trial_id)
    return () if row is None else tuple(row.tags)


_ADD = Prepared(
    postgresql.insert(tag)  # SQLite has the same ON CONFLICT clause
    .from_select(
        ["study_id", "trial_id", "key"],
        sa.select(trial.c.study_id, trial.c.id, sa.bindparam("new_key", type_=sa.Text)).where(
            trial.c.study_id == sa.bindparam("study", type_=sa.BigInteger),
            is_listed(trial.c.id, "ids"),
        ),
    )
    .on_conflict_do_nothing()
)
_OF_TRIALS = (tag.c.study_id == sa.bindparam("study"), is_listed(tag.c.trial_id, "ids"))
_REMOVE = Prepared(sa.delete(tag).where(*_OF_TRIALS, is_listed(tag.c.key, "keys")))
_counted = (
    sa.select(sa.func.count().label("n")).where(*_OF_TRIALS).group_by(tag.c.trial_id).subquery()
)
_MOST = Prepared(sa.select(sa.func.coalesce(sa.func.max(_counted.c.n), 0).label("n")))


def mark(txn: Txn, *, trial_ids: Sequence[int]) -> None:
    """Set `has_tags` of trials that get tags; lock the trials whose `has_tags` was not set."""
    ids = list(trial_ids)
    if txn.all(_LOCK_UNMARKED, ids=ids):
        txn.run(_MARK, ids=ids)


def add(txn: Txn, *, study_id: int, trial_ids: Sequence[int], tag: str) -> None:
    """Add a tag to trials; the caller has called `mark`. A trial that has the tag keeps it."""
    txn.run(_ADD, study=study_id, ids=list(trial_ids), new_key=tag)


def remove(txn: Txn, *, study_id: int, trial_ids: Sequence[int], tags: Sequence[str]) -> None:
    """Remove tags from trials, as far as the trials have them."""
    if tags:
        txn.run(_REMOVE, study=study_id, ids=list(trial_ids), keys=list(tags))


def most(txn: Txn, *, study_id: int, trial_ids: Sequence[int]) -> int:
    """Return how many tags the trial with the most tags has; 0 if none has a tag."""
    return int(txn.all(_MOST, study=study_id, ids=list(trial_ids))[0].n)


def is_tagged(number: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Make the condition that the trial `number` has a tag; the binds are `study` and `of_tag`."""
    tagged = trial.alias("tagged")
    return number.in_(
        sa.select(tagged.c.number)
        .join(tag, tag.c.trial_id == tagged.c.id)
        .where(
            tag.c.study_id == sa.bindparam("study"),
            tag.c.key == sa.bindparam("of_tag", type_=sa.Text),
        )
    )
