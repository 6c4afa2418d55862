"""Results: insert-only; an attempt's `live_through` says which rows still count."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import attempt, result
from studydb.db.statement import BulkInsert
from studydb.domain.metrics import Result
from studydb.domain.records import Lease

APPEND = BulkInsert(
    result,
    common=("study_id", "trial_id", "attempt"),
    columns=("step", "value", "metrics", "time_total_s"),
    stamped="reported_at",
)

IS_LIVE = sa.and_(
    attempt.c.trial_id == result.c.trial_id,
    attempt.c.attempt == result.c.attempt,
    result.c.step <= attempt.c.live_through,
)
"""The join of a result with its attempt if no later attempt has superseded it."""

_LIVE = Prepared(
    sa.select(
        result.c.step, result.c.value, result.c.metrics, result.c.time_total_s, result.c.attempt
    )
    .join(attempt, IS_LIVE)
    .where(
        result.c.study_id == sa.bindparam("study"),
        result.c.trial_id == sa.bindparam("trial"),
    )
    .order_by(result.c.step)
)


def as_rows(results: Iterable[Result]) -> list[tuple[Any, ...]]:
    """Results as `APPEND` inserts them."""
    return [(one.step, one.value, dict(one.metrics) or None, one.time_total_s) for one in results]


def append(txn: Txn, *, lease: Lease, results: Iterable[Result]) -> None:
    """Insert rows; the caller holds the trial by its fence."""
    txn.insert_many(
        APPEND,
        as_rows(results),
        study_id=lease.study_id,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
    )


def live(txn: Txn, *, study_id: int, trial_id: int) -> list[Result]:
    """The rows of one trial that no later attempt has superseded, by step."""
    return [
        Result(row.step, row.value, row.metrics or {}, row.time_total_s)
        for row in txn.all(_LIVE, study=study_id, trial=trial_id)
    ]
