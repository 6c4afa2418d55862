"""
Which trials of a study are best.

Trials are ranked by the score of their best value, then by number. A trial has no rank if it has no
results, if all its values are NaN, or if it is invalidated. A trial's score in the index
`trial_rank` is updated when an attempt ends. RUNNING trials are ranked by the scores in their rows,
so that a report need not update an index.
"""

import math
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import in_state, trial
from studydb.domain.life.states import State
from studydb.domain.listed_rows import Unranked
from studydb.domain.records import TrialRow
from studydb.store import tags, trials

NEWEST_READ = 100
"""How many of a study's newest trials `unranked` reads; workers without a best trial call it."""

_OF_STUDY = trial.c.study_id == sa.bindparam("study")
_NAN = sa.literal(math.nan, trial.c.best_value.type)
_IS_NAN = trial.c.best_value == _NAN


def _ranked(*columns: Any) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .where(_OF_STUDY, trial.c.rank_score.is_not(None), trial.c.state != State.RUNNING)
        .order_by(trial.c.rank_score, trial.c.number)
    )


def _ranked_running(*columns: Any) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .where(
            _OF_STUDY,
            in_state(State.RUNNING),
            trial.c.best_value.is_not(None),
            sa.not_(_IS_NAN),
            trial.c.invalidated_at.is_(None),
        )
        .order_by(trial.c.best_score, trial.c.number)
    )


_LIMIT: sa.BindParameter[int] = sa.bindparam("limit")
_BEST = (
    Prepared(_ranked(*trials.ROW).limit(_LIMIT)),
    Prepared(_ranked_running(*trials.ROW).limit(_LIMIT)),
)
_SCORES = _ranked(trial.c.best_score, trial.c.number)
_SCORES_RUNNING = _ranked_running(trial.c.best_score, trial.c.number)
_WITHOUT_RANK = (
    sa.select(trial.c.number)
    .where(
        _OF_STUDY,
        sa.or_(trial.c.best_value.is_(None), _IS_NAN, trial.c.invalidated_at.is_not(None)),
    )
    .order_by(trial.c.number)
)

_NEWEST = (
    sa.select(trial.c.best_value)
    .where(_OF_STUDY)
    .order_by(trial.c.number.desc())
    .limit(NEWEST_READ)
    .subquery()
)
_invalidated = (
    sa.select(sa.true())
    .where(_OF_STUDY, trial.c.invalidated_at.is_not(None), trial.c.best_value != _NAN)
    .limit(1)
)
_UNRANKED = Prepared(
    sa.select(
        sa.func.count(sa.case((_NEWEST.c.best_value == _NAN, 1))),
        _invalidated.scalar_subquery().is_not(None),
    ).select_from(_NEWEST)
)


def unranked(txn: Txn, *, study_id: int) -> Unranked:
    """Read why a study without a best trial has none: what its trials have reported."""
    n_nan, has_invalidated = txn.all(_UNRANKED, study=study_id)[0]
    return Unranked(n_nan > 0, bool(has_invalidated))


def best(txn: Txn, *, study_id: int, limit: int = 1) -> list[TrialRow]:
    """Read the best `limit` trials of a study that have a rank, best first."""
    rows = [row for query in _BEST for row in txn.all(query, study=study_id, limit=limit)]
    rows.sort(key=lambda row: (row.best_score, row.number))
    return [trials.read(row) for row in rows[:limit]]


def numbers(
    txn: Txn,
    *,
    study_id: int,
    state: State | None = None,
    tag: str | None = None,
    limit: int | None = None,
) -> list[int]:
    """
    Read the numbers of a study's trials, best first; then trials without a rank, by number.

    Args:
        state: The state of the trials; None for any.
        tag: A tag of the trials; None for any.
        limit: The most numbers to read; None for all.
    """
    given = _Filter(study_id, state, tag)
    found = []
    if state is not State.RUNNING:
        found += _read(txn, _SCORES, given, limit)
    if state in (None, State.RUNNING):
        found += _read(txn, _SCORES_RUNNING, given, limit)
    ranked = [row.number for row in sorted(found)][:limit]
    n_missing = None if limit is None else limit - len(ranked)
    if n_missing == 0:
        return ranked
    return ranked + [row.number for row in _read(txn, _WITHOUT_RANK, given, n_missing)]


class _Filter(NamedTuple):
    study: int
    state: State | None
    tag: str | None


def _read(txn: Txn, query: sa.Select[Any], given: _Filter, limit: int | None) -> list[Any]:
    params: dict[str, Any] = {"study": given.study}
    if given.state is not None:
        query = query.where(trial.c.state == sa.bindparam("of_state", type_=sa.Text))
        params["of_state"] = given.state
    if given.tag is not None:
        query = query.where(tags.is_tagged(trial.c.number))
        params["of_tag"] = given.tag
    return txn.all(query if limit is None else query.limit(limit), **params)
