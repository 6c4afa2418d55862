"""Rungs and judgements as people read them, with scores turned back into values."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import is_listed
from studydb.db.schema import trial
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.states import Mode, Reason, State
from studydb.domain.listed_rows import (
    MOST_COUNTED,
    MOST_JUDGED,
    Judgement,
    LastDecision,
    ListedRung,
)
from studydb.domain.quantile import Cut, exact_cutoff
from studydb.store import events
from studydb.store.promotions import BETTER_THAN_CUT, IS_KEPT
from studydb.store.rungs import NONE_KEPT

NEWEST = 100
"""How many of a study's newest trials are searched for the last decisions."""

_STUDY = sa.bindparam("study", type_=sa.BigInteger)


def _counted(*conditions: sa.ColumnElement[bool], entries: sa.FromClause) -> sa.ScalarSelect[Any]:
    """Count the entries that meet the conditions, up to `MOST_COUNTED`."""
    first = (
        sa.select(sa.literal_column("1").label("one"))
        .select_from(entries)
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
    entries=_other,
)
_OF_TRIAL = (rung.c.study_id == _STUDY, rung_entry.c.trial_id == sa.bindparam("trial"))
_last_rungs = (
    sa.select(rung.c.id)
    .join(rung_entry, rung_entry.c.rung_id == rung.c.id)
    .where(*_OF_TRIAL)
    .order_by(rung.c.step.desc())
    .limit(MOST_JUDGED)
)
_JUDGED = (
    rung.c.step.label("rung"),
    rung_entry.c.step,
    rung_entry.c.value,
    rung_entry.c.cutoff,
    rung_entry.c.action,
    rung.c.bracket,
    sa.case((rung_entry.c.ranked, 1 + _N_BETTER)).label("rank"),
    rung.c.n_ranked,
    rung_entry.c.promoted_at,
    sa.case(
        (sa.or_(rung.c.closed_at.is_(None), rung_entry.c.waiting.is_(None)), None), else_=IS_KEPT
    ).label("kept"),
)
"""The columns of a `Judgement`, without the reason that the user's code has given."""

_JUDGEMENTS = Prepared(
    sa.select(*_JUDGED)
    .join(rung, rung.c.id == rung_entry.c.rung_id)
    .where(*_OF_TRIAL, rung.c.id.in_(_last_rungs))
    .order_by(rung.c.step)
)

_ONE_JUDGEMENT = Prepared(
    sa.select(*_JUDGED)
    .join(rung, rung.c.id == rung_entry.c.rung_id)
    .where(
        rung_entry.c.rung_id == sa.bindparam("rung"),
        rung_entry.c.trial_id == sa.bindparam("trial"),
    )
)

_last_rung = (
    sa.select(rung.c.id)
    .where(
        rung.c.study_id == trial.c.study_id,
        rung.c.bracket == trial.c.bracket,
        rung.c.step <= trial.c.last_step,
    )
    .order_by(rung.c.step.desc())
    .limit(1)
    .correlate(trial)
    .scalar_subquery()
)


def _of_last_entry(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """
    Select a column of a trial's last entry by a look-up of the entry's key.

    PostgreSQL would plan a join as a hash join with all entries.
    """
    entered = (rung_entry.c.rung_id == _last_rung, rung_entry.c.trial_id == trial.c.id)
    return sa.select(column).where(*entered).correlate(trial).scalar_subquery()


_judged_trials = sa.select(
    trial.c.id,
    trial.c.number,
    trial.c.state,
    trial.c.reason,
    trial.c.paused_by,
    trial.c.ended_at,
    _of_last_entry(rung_entry.c.rung_id).label("rung_id"),
    _of_last_entry(rung_entry.c.recorded_at).label("recorded_at"),
    _of_last_entry(rung_entry.c.promoted_at).label("promoted_at"),
)
_NEWEST_TRIALS = Prepared(
    _judged_trials.where(trial.c.study_id == _STUDY).order_by(trial.c.number.desc()).limit(NEWEST)
)
_LISTED_TRIALS = Prepared(_judged_trials.where(is_listed(trial.c.id, "trials")))

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
        _counted(_other.c.rung_id == rung.c.id, _other.c.waiting, entries=_other).label(
            "n_waiting"
        ),
        BETTER_THAN_CUT.label("better"),
        _best.label("best"),
    )
    .where(rung.c.study_id == _STUDY, rung.c.n_entries > 0)
    .order_by(rung.c.bracket.desc(), rung.c.step.desc())
    .limit(sa.bindparam("limit"))
)


def judgements(
    txn: Txn, *, study_id: int, trial_id: int, mode: Mode, reasons: Mapping[int, str]
) -> list[Judgement]:
    """
    Read how a trial was judged at its last 100 rungs; cutoffs are given as values of the metric.

    Args:
        reasons: The custom scheduler's reasons, by the step of the judged result.
    """
    found = [
        Judgement._make((*row, reasons.get(row.step)))
        for row in txn.all(_JUDGEMENTS, study=study_id, trial=trial_id)
    ]
    return [one._replace(cutoff=_value(one.cutoff, mode)) for one in found]


def last_decisions(
    txn: Txn, *, study_id: int, mode: Mode, limit: int, reasons: Mapping[tuple[int, int], str]
) -> list[LastDecision]:
    """
    Read the scheduler's last decisions to stop, pause, promote or give up a trial, newest first.

    Only the newest trials, and the trials whose promotion is a recent event, are searched.

    Args:
        reasons: The custom scheduler's reasons, by trial id and step of the judged result.
    """
    found = {row.id: row for row in txn.all(_NEWEST_TRIALS, study=study_id)}
    if promoted := events.promoted(txn, study_id=study_id) - found.keys():
        found |= {row.id: row for row in txn.all(_LISTED_TRIALS, trials=sorted(promoted))}
    decided = sorted(filter(_is_decided, found.values()), key=_decided_at, reverse=True)
    return [_last_decision(txn, row, mode, reasons) for row in decided[:limit]]


def _is_decided(row: Any) -> bool:
    """Tell whether the scheduler's decision at a trial's last rung has led to the trial's state."""
    if row.rung_id is None:
        return False
    if row.ended_at is not None:
        return bool(row.reason in (Reason.EARLY_STOPPED, Reason.GIVEN_UP))
    if row.state == State.PAUSED:
        return bool(row.paused_by == DecidedBy.SCHEDULER)
    return bool(row.promoted_at is not None)


def _decided_at(row: Any) -> tuple[datetime, int]:
    return (row.ended_at or row.promoted_at or row.recorded_at, row.number)


def _last_decision(
    txn: Txn, row: Any, mode: Mode, reasons: Mapping[tuple[int, int], str]
) -> LastDecision:
    (found,) = txn.all(_ONE_JUDGEMENT, rung=row.rung_id, trial=row.id)
    judged = Judgement._make((*found, reasons.get((row.id, found.step))))
    judged = judged._replace(cutoff=_value(judged.cutoff, mode))
    reason = None if row.reason is None else Reason(row.reason)
    return LastDecision(row.number, State(row.state), reason, judged)


def list_rungs(
    txn: Txn, *, study_id: int, mode: Mode, limit: int, has_cutoffs: bool
) -> list[ListedRung]:
    """
    Read the rungs that have entries, ordered by bracket and step; of these, only the last `limit`.

    Args:
        has_cutoffs: Whether the study's scheduler decides by the cutoffs.
    """
    rows = txn.all(_LIST, study=study_id, limit=limit)
    return [_listed(row, mode, has_cutoff=has_cutoffs) for row in reversed(rows)]


def _listed(row: Any, mode: Mode, *, has_cutoff: bool) -> ListedRung:
    entry = None if row.cut_trial_id is None else (row.cut_score, row.cut_trial_id)
    cut = Cut(n=row.n_ranked, rank=row.cut_rank, entry=entry)
    cutoff = exact_cutoff(cut, row.better, row.quantile) if has_cutoff else None
    kept = None if row.closed_ordinal == NONE_KEPT else row.closed_cutoff
    return ListedRung(
        bracket=row.bracket,
        step=row.step,
        entries=row.n_entries,
        ranked=row.n_ranked,
        waiting=row.n_waiting,
        top=1 - row.quantile if has_cutoff else None,
        cutoff=_value(cutoff, mode),
        best=_value(row.best, mode),
        kept=_value(kept, mode),
        closed_at=row.closed_at,
    )


def _value(score: float | None, mode: Mode) -> float | None:
    return score if score is None or mode is Mode.MIN else 0.0 - score
