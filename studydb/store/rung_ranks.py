"""
Take trials' entries out of the ranking of their rungs, and put them back.

An entry that is taken out keeps its row. The cut moves along the ranked entries, by at most as many
entries as were taken out or put back.
"""

import math
from collections.abc import Sequence

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import is_listed
from studydb.domain.quantile import Cut, Position, Shift, added, removed
from studydb.store.rungs import ENTRY, Rung, beside_cut, read

_STUDY = sa.bindparam("study", type_=sa.BigInteger)
_OF_TRIALS = is_listed(rung_entry.c.trial_id, "trials")
_HAS_ENTRIES = sa.exists().where(rung_entry.c.rung_id == rung.c.id, _OF_TRIALS)
_LOCK = Prepared(
    sa.select(rung)
    .where(rung.c.study_id == _STUDY, _HAS_ENTRIES)
    .order_by(rung.c.bracket, rung.c.step)
    .with_for_update(key_share=True)
)
_RUNGS = Prepared(sa.select(rung.c.id).where(rung.c.study_id == _STUDY, _HAS_ENTRIES))

_THESE = (rung_entry.c.rung_id == sa.bindparam("rung"), _OF_TRIALS)
_UNRANK = Prepared(
    sa.update(rung_entry).where(*_THESE, rung_entry.c.ranked).values(ranked=False).returning(*ENTRY)
)
_RANK = Prepared(
    sa.update(rung_entry)
    .where(
        *_THESE,
        sa.not_(rung_entry.c.ranked),
        rung_entry.c.value != sa.literal(math.nan, rung_entry.c.value.type),
    )
    .values(ranked=True)
    .returning(*ENTRY)
)


_between = sa.bindparam("n_between", type_=sa.BigInteger)
_NTH_WORSE = Prepared(beside_cut("worse").offset(_between))
_NTH_BETTER = Prepared(beside_cut("better").offset(_between))

_MOVE_CUT = Prepared(
    sa.update(rung)
    .where(rung.c.id == sa.bindparam("rung"))
    .values(
        n_ranked=sa.bindparam("to_n"),
        cut_rank=sa.bindparam("to_rank"),
        cut_score=sa.bindparam("to_score"),
        cut_trial_id=sa.bindparam("to_trial"),
    )
)


def lock(txn: Txn, *, study_id: int, trial_ids: Sequence[int]) -> list[Rung]:
    """Lock the rungs that trials have entered. The lock order is: rungs, then trials."""
    rows = txn.all(_LOCK, study=study_id, trials=list(trial_ids))
    return [read(row) for row in rows]


def are_locked(
    txn: Txn, *, study_id: int, trial_ids: Sequence[int], locked: Sequence[Rung]
) -> bool:
    """Tell whether `locked` has every rung that these trials, which are locked, have entered."""
    rows = txn.all(_RUNGS, study=study_id, trials=list(trial_ids))
    return {row.id for row in rows} <= {one.id for one in locked}


def unrank(txn: Txn, *, rungs: Sequence[Rung], trial_ids: Sequence[int]) -> None:
    """Take the entries of trials out of the ranking of locked rungs."""
    for one in rungs:
        rows = txn.all(_UNRANK, rung=one.id, trials=list(trial_ids))
        positions = [(row.score, row.trial_id) for row in rows]
        if positions:
            _move(txn, one, removed(one.cut, positions, quantile=one.quantile))


def rank(txn: Txn, *, rungs: Sequence[Rung], trial_ids: Sequence[int]) -> None:
    """Put trials' entries back into the ranking of locked rungs; entries with NaN stay out."""
    for one in rungs:
        rows = txn.all(_RANK, rung=one.id, trials=list(trial_ids))
        positions = [(row.score, row.trial_id) for row in rows]
        if positions:
            _move(txn, one, added(one.cut, positions, quantile=one.quantile))


def _move(txn: Txn, rung: Rung, shift: Shift) -> None:
    entry = _entry(txn, rung, shift)
    cut = Cut(shift.n, shift.rank if entry else 0, entry)
    score, trial_id = cut.entry or (None, None)
    txn.run(
        _MOVE_CUT, rung=rung.id, to_n=cut.n, to_rank=cut.rank, to_score=score, to_trial=trial_id
    )


def _entry(txn: Txn, rung: Rung, shift: Shift) -> Position | None:
    if shift.steps == 0 or shift.origin is None:
        return shift.origin
    score, trial_id = shift.origin
    row = txn.all(
        _NTH_BETTER if shift.steps > 0 else _NTH_WORSE,
        rung=rung.id,
        cut_score=score,
        cut_trial=trial_id,
        n_between=abs(shift.steps) - 1,
    )[0]
    return row.score, row.trial_id
