"""Read checkpoints with the metric's value at their steps, and sum up their sizes by host."""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import attempt, by_id, checkpoint, result, trial, worker
from studydb.domain.checkpoint import Checkpoint, KeptCheckpoint
from studydb.domain.listed_rows import CheckpointSizes, ListedCheckpoint
from studydb.store import checkpoints

VALUE = (
    sa.select(result.c.value)
    .join(
        attempt,
        sa.and_(attempt.c.trial_id == result.c.trial_id, attempt.c.attempt == result.c.attempt),
    )
    .where(
        result.c.study_id == checkpoint.c.study_id,
        attempt.c.trial_id == checkpoint.c.trial_id,
        attempt.c.attempt <= checkpoint.c.attempt,
        result.c.step == checkpoint.c.step,
    )
    .order_by(attempt.c.attempt.desc())
    .limit(1)
    .correlate(checkpoint)
    .scalar_subquery()
    .label("value")
)
"""
The value that the checkpoint's attempt reported at the checkpoint's step. If that attempt did not
report this step, the value comes from the latest earlier attempt that reported it.
"""

_BY_ID = by_id(checkpoint)

_KEPT = checkpoint.c.removed_at.is_(None)
_WITH_VALUE = checkpoints.OF_TRIAL.add_columns(VALUE)
_OF_TRIAL = Prepared(
    _WITH_VALUE.where(checkpoint.c.trial_id == sa.bindparam("trial"), _KEPT).order_by(_BY_ID)
)
_KEPT_OF = Prepared(
    _WITH_VALUE.add_columns(checkpoint.c.pins, trial.c.number)
    .where(is_listed(checkpoint.c.trial_id, "trials"), _KEPT)
    .order_by(trial.c.number, _BY_ID)
)
_FIND = Prepared(_WITH_VALUE.where(checkpoint.c.id == sa.bindparam("checkpoint")))


_LISTED = (
    *(checkpoint.c[name] for name in ("step", "size_bytes", "kind", "attempt", "pins")),
    *(checkpoint.c[name] for name in ("created_at", "url", "digest")),
)
_OF_TRIALS = (is_listed(checkpoint.c.trial_id, "trials"), _KEPT)
_LIST = Prepared(
    sa.select(trial.c.number, VALUE, *_LISTED)
    .join(trial, trial.c.id == checkpoint.c.trial_id)
    .where(*_OF_TRIALS)
    .order_by(trial.c.number, _BY_ID)
)
_IS_UPLOADED = (checkpoint.c.attempt == sa.literal_column("0")).label("is_uploaded")
_SIZES = Prepared(
    sa.select(
        worker.c.host,
        _IS_UPLOADED,
        sa.func.count().label("n"),
        sa.cast(sa.func.sum(checkpoint.c.size_bytes), sa.BigInteger).label("size_bytes"),
    )
    .select_from(checkpoint)
    .outerjoin(  # a checkpoint that a person uploaded has the attempt 0, which has no row
        attempt,
        sa.and_(
            attempt.c.trial_id == checkpoint.c.trial_id, attempt.c.attempt == checkpoint.c.attempt
        ),
    )
    .outerjoin(worker, worker.c.id == attempt.c.worker_id)
    .where(*_OF_TRIALS)
    .group_by(worker.c.host, _IS_UPLOADED)
    .order_by(sa.desc("size_bytes"), worker.c.host)
)
_NEWEST_TRIALS = Prepared(
    sa.select(trial.c.id)
    .where(trial.c.study_id == sa.bindparam("study"))
    .order_by(trial.c.number.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_TRIALS_AFTER = Prepared(
    sa.select(trial.c.id, trial.c.number)
    .where(
        trial.c.study_id == sa.bindparam("study"),
        trial.c.number > sa.bindparam("after_number", type_=sa.BigInteger),
    )
    .order_by(trial.c.number)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


class NumberedTrial(NamedTuple):
    id: int
    number: int


class CheckpointWithPins(NamedTuple):
    """A kept checkpoint, the metric's value at its step, its pin count, and its trial's number."""

    row: Checkpoint
    value: float | None
    pins: int
    number: int


def of_trials(txn: Txn, *, trial_ids: Sequence[int]) -> list[CheckpointWithPins]:
    """Read the kept checkpoints of trials, ordered by trial number, then in the order of saves."""
    found = txn.all(_KEPT_OF, trials=list(trial_ids))
    return [
        CheckpointWithPins(checkpoints.read(row), row.value, row.pins, row.number) for row in found
    ]


def of_trial(txn: Txn, *, trial_id: int) -> list[KeptCheckpoint]:
    """Read the kept checkpoints of a trial in the order of the saves."""
    found = txn.all(_OF_TRIAL, trial=trial_id)
    return [KeptCheckpoint(checkpoints.read(row), row.value) for row in found]


def find(txn: Txn, *, checkpoint_id: int) -> KeptCheckpoint | None:
    """Find one checkpoint, removed or not, with the metric's value at its step."""
    row = txn.first(_FIND, checkpoint=checkpoint_id)
    return None if row is None else KeptCheckpoint(checkpoints.read(row), row.value)


def trials_after(txn: Txn, *, study_id: int, after_number: int, limit: int) -> list[NumberedTrial]:
    """Read the ids and numbers of the first `limit` trials above `after_number`, ascending."""
    found = txn.all(_TRIALS_AFTER, study=study_id, after_number=after_number, limit=limit)
    return [NumberedTrial(row.id, row.number) for row in found]


def newest_trials(txn: Txn, *, study_id: int, limit: int) -> list[int]:
    """
    Read the ids of a study's newest trials.

    The caller passes the ids to a second statement, which reads the checkpoints. If one statement
    joined these trials (with the LIMIT) to the checkpoints, PostgreSQL would read the checkpoints
    of all studies.
    """
    return [row.id for row in txn.all(_NEWEST_TRIALS, study=study_id, limit=limit)]


def list_checkpoints(txn: Txn, *, trial_ids: Sequence[int]) -> list[ListedCheckpoint]:
    """List the kept checkpoints of trials, ordered by trial number, then in the order of saves."""
    return [
        ListedCheckpoint(**{name: getattr(row, name) for name in ListedCheckpoint._fields})
        for row in txn.all(_LIST, trials=list(trial_ids))
    ]


def sizes(txn: Txn, *, trial_ids: Sequence[int]) -> list[CheckpointSizes]:
    """Sum up the sizes of kept checkpoints, by host and by whether a person uploaded them."""
    found = txn.all(_SIZES, trials=list(trial_ids))
    return [
        CheckpointSizes(row.host, int(row.n), int(row.size_bytes), bool(row.is_uploaded))
        for row in found
    ]
