"""Rungs and judgements as people read them, with scores turned back into values."""

from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.domain.life.states import Mode
from studydb.domain.listed_rows import MOST_COUNTED, Judgement, ListedRung
from studydb.domain.quantile import Cut, exact_cutoff
from studydb.store.promotions import BETTER_THAN_CUT
from studydb.store.rungs import NONE_KEPT

_STUDY = sa.bindparam("study", type_=sa.BigInteger)


def _counted(*conditions: sa.ColumnElement[bool], of: sa.FromClause) -> sa.ScalarSelect[Any]:
    """Count the entries of an index, up to `MOST_COUNTED`."""
    first = (
        sa.select(sa.literal_column("1").label("one"))
        .select_from(of)
        .where(*conditions)
        .limit(MOST_COUNTED)
        .correlate(rung, rung_entry)
        .subquery()
    )
    return sa.select(sa.func.count()).select_from(first).scalar_subquery()


_other = rung_entry.alias("other")
_N_BETTER = _counted(
    _other.c.rung_id == rung.c.id,
    _other.c.ranked,
    _other.c.score < rung_entry.c.score,
    of=_other,
)
_JUDGEMENTS = Prepared(
    sa.select(
        rung.c.step.label("rung"),
        rung_entry.c.step,
        rung_entry.c.value,
        rung_entry.c.cutoff,
        rung_entry.c.action,
        rung.c.bracket,
        sa.case((rung_entry.c.ranked, 1 + _N_BETTER)).label("rank"),
        rung.c.n_ranked,
        rung_entry.c.promoted_at,
    )
    .join(rung, rung.c.id == rung_entry.c.rung_id)
    .where(rung.c.study_id == _STUDY, rung_entry.c.trial_id == sa.bindparam("trial"))
    .order_by(rung.c.step)
)

_best = (
    sa.select(_other.c.score)
    .where(_other.c.rung_id == rung.c.id, _other.c.ranked)
    .order_by(_other.c.score, _other.c.trial_id)
    .limit(1)
    .correlate(rung)
    .scalar_subquery()
)
_LIST = Prepared(
    sa.select(
        rung,
        _counted(_other.c.rung_id == rung.c.id, _other.c.waiting, of=_other).label("n_waiting"),
        BETTER_THAN_CUT.label("better"),
        _best.label("best"),
    )
    .where(rung.c.study_id == _STUDY, rung.c.n_entries > 0)
    .order_by(rung.c.bracket.desc(), rung.c.step.desc())
    .limit(sa.bindparam("limit"))
)


def judgements(txn: Txn, *, study_id: int, trial_id: int, mode: Mode) -> list[Judgement]:
    """Read how a trial was judged at each rung, with cutoffs as values of the metric."""
    found = [Judgement._make(row) for row in txn.all(_JUDGEMENTS, study=study_id, trial=trial_id)]
    return [one._replace(cutoff=_value(one.cutoff, mode)) for one in found]


def list_rungs(txn: Txn, *, study_id: int, mode: Mode, limit: int) -> list[ListedRung]:
    """Read the last rungs that have entries, ordered by bracket and step."""
    rows = txn.all(_LIST, study=study_id, limit=limit)
    return [_listed(row, mode) for row in reversed(rows)]


def _listed(row: Any, mode: Mode) -> ListedRung:
    entry = None if row.cut_trial_id is None else (row.cut_score, row.cut_trial_id)
    cut = Cut(n=row.n_ranked, rank=row.cut_rank, entry=entry)
    kept = None if row.closed_ordinal == NONE_KEPT else row.closed_cutoff
    return ListedRung(
        bracket=row.bracket,
        step=row.step,
        entries=row.n_entries,
        ranked=row.n_ranked,
        waiting=row.n_waiting,
        top=1 - row.quantile,
        cutoff=_value(exact_cutoff(cut, row.better, row.quantile), mode),
        best=_value(row.best, mode),
        kept=_value(kept, mode),
        closed_at=row.closed_at,
    )


def _value(score: float | None, mode: Mode) -> float | None:
    return score if score is None or mode is Mode.MIN else 0.0 - score
