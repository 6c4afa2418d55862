"""Results: inserted, never updated. An attempt's live results end at the step `live_through`."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import Struct, structs

from studydb.db import Prepared, Txn
from studydb.db.schema import NOT_SUPERSEDED, attempt, result
from studydb.db.statement import BulkInsert
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result, Summary
from studydb.domain.objective import Objective
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
"""The condition that joins results with their attempts, and leaves out superseded results."""

_THIS = (
    result.c.study_id == sa.bindparam("study"),
    result.c.trial_id == sa.bindparam("trial"),
)
_IN_SPAN = (
    *_THIS,
    result.c.attempt == sa.bindparam("no"),
    result.c.step > sa.bindparam("after", type_=sa.BigInteger),
    result.c.step <= sa.bindparam("through", type_=sa.BigInteger),
)


class StoredResult(NamedTuple):
    step: int
    value: float
    metrics: dict[str, Any] | None
    time_total_s: float | None
    attempt: int
    reported_at: datetime


_PAGE = sa.select(*(result.c[name] for name in StoredResult._fields)).where(*_IN_SPAN)
_LIMIT: sa.BindParameter[int] = sa.bindparam("limit")
_FIRST = Prepared(_PAGE.order_by(result.c.step).limit(_LIMIT))
_LAST = Prepared(_PAGE.order_by(result.c.step.desc()).limit(1))

_FROM_END = Prepared(
    sa.select(result.c.step)
    .where(*_IN_SPAN)
    .order_by(result.c.step.desc())
    .offset(sa.bindparam("passed", type_=sa.BigInteger))
    .limit(1)
)
_COUNT = Prepared(sa.select(sa.func.count().label("n")).select_from(result).where(*_IN_SPAN))

_SPANS = Prepared(
    sa.select(attempt.c.attempt, attempt.c.live_through)
    .where(attempt.c.trial_id == sa.bindparam("trial"), attempt.c.live_through > 0)
    .order_by(attempt.c.attempt)
)

_highest_of_attempt = (
    sa.select(sa.func.max(result.c.step))
    .where(*_THIS, result.c.attempt == attempt.c.attempt)
    .correlate(attempt)
    .scalar_subquery()
)
_HIGHEST = Prepared(
    sa.select(sa.func.max(_highest_of_attempt).label("step")).where(
        attempt.c.trial_id == sa.bindparam("trial"), attempt.c.attempt < sa.bindparam("no")
    )
)
"""One look-up for each attempt, because an attempt may have a million results."""

_live = sa.select(result.c.step, result.c.value).join(attempt, IS_LIVE).where(*_THIS)
_counted = _live.with_only_columns(sa.func.count().label("n_results")).subquery("counted")
_last = _live.order_by(result.c.attempt.desc(), result.c.step.desc()).limit(1).subquery("last")
_bound = {
    name: sa.bindparam(name, type_=result.c.value.type) for name in ("best_end", "worst_end", "nan")
}
_best = (
    _live.order_by(
        sa.case(
            (result.c.value == _bound["best_end"], 0),
            (result.c.value == _bound["worst_end"], 2),
            (result.c.value == _bound["nan"], 3),
            else_=1,
        ),
        result.c.value * sa.bindparam("sign", type_=sa.Double),  # the CASE orders ±Inf and NaN
        result.c.step,
    )
    .limit(1)
    .subquery("best")
)
_SUMMARY = Prepared(
    sa.select(
        _counted.c.n_results,
        _last.c.step.label("last_step"),
        _last.c.value.label("last_value"),
        _best.c.value.label("best_value"),
        _best.c.step.label("best_step"),
    ).select_from(_counted.join(_last, sa.true()).join(_best, sa.true()))
)


class Span(Struct, frozen=True):
    """
    Live results of one attempt: the steps after `after`, up to and including `through`.

    An attempt's new results have higher steps than its earlier ones. So a span that ends at a
    reported step gets no more rows.
    """

    study_id: int
    trial_id: int
    attempt: int
    after: int
    through: int

    def behind(self, step: int) -> "Span":
        """Return the part of the span after a step."""
        return structs.replace(self, after=step)


_ANY = Prepared(sa.select(result.c.step).where(result.c.study_id == sa.bindparam("study")).limit(1))


def any_of_study(txn: Txn, *, study_id: int) -> bool:
    """Tell whether any trial of a study has ever reported, by one look-up in the primary key."""
    return txn.first(_ANY, study=study_id) is not None


def as_rows(results: Iterable[Result]) -> list[tuple[Any, ...]]:
    """Turn results into the rows that `APPEND` inserts."""
    return [(one.step, one.value, dict(one.metrics) or None, one.time_total_s) for one in results]


def append(txn: Txn, *, lease: Lease, results: Iterable[Result]) -> None:
    """Insert results of a trial that the caller has locked by `leases.hold`."""
    txn.insert_many(
        APPEND,
        as_rows(results),
        study_id=lease.study_id,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
    )


def spans(txn: Txn, *, study_id: int, trial_id: int, through: int = NOT_SUPERSEDED) -> list[Span]:
    """
    Find the spans of a trial's live results, ordered by step.

    Args:
        through: The last step to include.
    """
    return [
        Span(study_id, trial_id, row.attempt, 0, min(row.live_through, through))
        for row in txn.all(_SPANS, trial=trial_id)
    ]


def page(txn: Txn, span: Span, *, limit: int) -> list[StoredResult]:
    """Read the first `limit` rows of a span, ordered by step."""
    return list(map(StoredResult._make, txn.all(_FIRST, **_binds(span), limit=limit)))


def last(txn: Txn, spans: Sequence[Span]) -> Result | None:
    """Read the last result of spans; None if the spans have no rows."""
    rows = (txn.first(_LAST, **_binds(span)) for span in reversed(spans))
    return next((read(StoredResult._make(row)) for row in rows if row is not None), None)


def last_spans(txn: Txn, spans: Sequence[Span], *, limit: int) -> list[Span]:
    """Find the parts of spans that hold the last `limit` rows, without reading values."""
    found: list[Span] = []
    for span in reversed(spans):
        row = txn.first(_FROM_END, **_binds(span), passed=limit - 1)
        found.insert(0, span if row is None else span.behind(row.step - 1))
        if row is not None:
            break
        limit -= txn.all(_COUNT, **_binds(span))[0].n
        if limit <= 0:
            break
    return found


def _binds(span: Span) -> dict[str, int]:
    return {
        "study": span.study_id,
        "trial": span.trial_id,
        "no": span.attempt,
        "after": span.after,
        "through": span.through,
    }


def read(row: StoredResult) -> Result:
    return Result(row.step, row.value, row.metrics or {}, row.time_total_s)


def highest_step(txn: Txn, *, study_id: int, lease: Lease) -> int:
    """Find the highest step that earlier attempts of a trial have reported; 0 if there is none."""
    found = txn.first(_HIGHEST, study=study_id, trial=lease.trial_id, no=lease.attempt)
    return 0 if found is None or found.step is None else int(found.step)


def summary(txn: Txn, *, study_id: int, trial_id: int, objective: Objective) -> Summary:
    """Summarize the live results of a trial by a query, with the same answer as `Summary.add`."""
    sign = 1.0 if objective.mode is Mode.MIN else -1.0
    row = txn.first(
        _SUMMARY,
        study=study_id,
        trial=trial_id,
        best_end=-math.inf * sign,
        worst_end=math.inf * sign,
        nan=math.nan,
        sign=sign,
    )
    if row is None:
        return Summary()
    return Summary(
        row.n_results,
        row.last_step,
        row.last_value,
        row.best_value,
        row.best_step,
        objective.score(row.best_value),
    )
