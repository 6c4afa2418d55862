"""
Rungs and their entries: an exact quantile, computed under the lock of the rung's row.

One statement locks the row, and a second statement reads the entries. A single statement that has
to wait for the lock would read the row as it is after the wait, but the entries as they were before
the wait.
"""

import math
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy.dialects import postgresql

from studydb.db import Chain, Prepared, Txn
from studydb.db.chain import of_main
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import now
from studydb.db.schema import checkpoint, trial
from studydb.domain.life.decisions import Action, Entry, RungKey
from studydb.domain.metrics import Result
from studydb.domain.quantile import Cut, Position, insert
from studydb.domain.records import Lease
from studydb.domain.scheduling import Ranked, RungSpec

NONE_KEPT = -1
"""The `closed_ordinal` of a rung that kept no trial; its `closed_cutoff` is -Inf."""

LOCK = Prepared(
    sa.select(rung)
    .where(
        rung.c.study_id == sa.bindparam("study"),
        rung.c.bracket == sa.bindparam("of_bracket"),
        rung.c.step == sa.bindparam("at_step"),
    )
    .with_for_update(key_share=True)
)

_CREATE = Prepared(
    postgresql.insert(rung)  # SQLite has the same ON CONFLICT clause
    .values(
        study_id=sa.bindparam("study"),
        bracket=sa.bindparam("of_bracket"),
        step=sa.bindparam("at_step"),
        quantile=sa.bindparam("quantile"),
        n_entries=0,
        n_ranked=0,
        cut_rank=0,
    )
    .on_conflict_do_nothing()
)

_POSITION = sa.tuple_(rung_entry.c.score, rung_entry.c.trial_id)
_CUT = sa.tuple_(
    sa.bindparam("cut_score", type_=sa.Double), sa.bindparam("cut_trial", type_=sa.BigInteger)
)
_RANKED = (rung_entry.c.rung_id == sa.bindparam("rung"), rung_entry.c.ranked)
ENTRY = (rung_entry.c.score, rung_entry.c.trial_id)


def beside_cut(side: str) -> sa.Select[Any]:
    """Select the ranked entry that is nearest to a rung's cut on a side, "worse" or "better"."""
    on_side = _POSITION > _CUT if side == "worse" else _POSITION < _CUT
    order = [column.asc() if side == "worse" else column.desc() for column in ENTRY]
    return sa.select(*ENTRY).where(*_RANKED, on_side).order_by(*order).limit(1)


def _labelled(side: str) -> sa.Select[Any]:
    source = beside_cut(side).subquery(side)
    return sa.select(sa.literal_column(f"'{side}'", sa.Text).label("side"), *source.c)


NEIGHBOURS = Prepared(
    sa.union_all(
        _labelled("worse"),
        _labelled("better"),
        sa.select(sa.literal_column("'own'", sa.Text), *ENTRY).where(
            rung_entry.c.rung_id == sa.bindparam("rung"),
            rung_entry.c.trial_id == sa.bindparam("trial"),
        ),
    )
)

_GIVEN = (
    *("trial_id", "attempt", "step", "value", "score"),
    *("ranked", "ordinal", "action", "cutoff", "waiting"),
)
_entry = {name: sa.bindparam(name, type_=rung_entry.c[name].type) for name in _GIVEN} | {
    "rung_id": of_main(rung.c.id),
    "recorded_at": now(),
}
_RECORD = Chain(
    sa.update(rung)
    .where(rung.c.id == sa.bindparam("rung"))
    .values(
        n_entries=rung.c.n_entries + 1,
        n_ranked=sa.bindparam("to_n"),
        cut_rank=sa.bindparam("to_rank"),
        cut_score=sa.bindparam("to_score"),
        cut_trial_id=sa.bindparam("to_trial"),
    )
    .returning(rung.c.id),
    entered=sa.insert(rung_entry).from_select([*_entry], sa.select(*_entry.values())),
)

_REVIVE = Prepared(sa.update(rung).where(rung.c.id == sa.bindparam("rung")).values(is_over=False))

_BEST = Prepared(
    sa.select(
        rung_entry.c.trial_id,
        rung_entry.c.score,
        sa.select(sa.func.max(checkpoint.c.id))
        .where(
            checkpoint.c.trial_id == rung_entry.c.trial_id,
            checkpoint.c.step == rung_entry.c.step,
            checkpoint.c.removed_at.is_(None),
        )
        .scalar_subquery()
        .label("checkpoint_id"),
        trial.c.params,
        trial.c.config,
    )
    .join(trial, trial.c.id == rung_entry.c.trial_id)
    .where(*_RANKED)
    .order_by(*ENTRY)
    .limit(sa.bindparam("most"))
)


class Rung(Struct, frozen=True):
    """A locked rung's row; for `closed_cutoff` see `RungView`."""

    id: int
    quantile: float
    n_entries: int
    cut: Cut
    is_closed: bool = False
    closed_cutoff: float | None = None
    is_over: bool = False


class Neighbours(Struct, frozen=True):
    """The entries beside a rung's cut, and whether the reporting trial has entered the rung."""

    worse: Position | None
    better: Position | None
    entered: bool


def create(txn: Txn, *, study_id: int, spec: RungSpec) -> None:
    """Insert a rung, unless the study has this rung already."""
    txn.run(
        _CREATE,
        study=study_id,
        of_bracket=spec.key.bracket,
        at_step=spec.key.step,
        quantile=spec.quantile,
    )


def lock(txn: Txn, *, study_id: int, key: RungKey) -> Rung | None:
    """
    Lock a rung. The lock order is: rungs by ascending key, then trials.

    Returns:
        None if the study has no such rung.
    """
    row = txn.first(LOCK, study=study_id, of_bracket=key.bracket, at_step=key.step)
    return None if row is None else read(row)


def read(row: Any) -> Rung:
    """Make a `Rung` from the row of a locked rung."""
    entry = None if row.cut_trial_id is None else (row.cut_score, row.cut_trial_id)
    return Rung(
        id=row.id,
        quantile=row.quantile,
        n_entries=row.n_entries,
        cut=Cut(n=row.n_ranked, rank=row.cut_rank, entry=entry),
        is_closed=row.closed_at is not None,
        closed_cutoff=None if row.closed_ordinal == NONE_KEPT else row.closed_cutoff,
        is_over=row.is_over,
    )


def lock_or_create(txn: Txn, *, study_id: int, spec: RungSpec) -> Rung:
    """Lock a rung; if the rung has no row yet, insert the row first."""
    found = lock(txn, study_id=study_id, key=spec.key)
    if found is None:
        create(txn, study_id=study_id, spec=spec)
        found = lock(txn, study_id=study_id, key=spec.key)
        assert found is not None
    return found


def query_neighbours(txn: Txn, *, rung: Rung, trial_id: int) -> Callable[[], Neighbours]:
    """
    Query the entries beside the cut of a locked rung, each by one look-up in the index.

    The statement also looks up whether the trial has entered the rung.

    Returns:
        A function that returns the answer; see `Txn.send`.
    """
    score, cut_trial = rung.cut.entry or (0.0, 0)
    read = txn.send(NEIGHBOURS, rung=rung.id, cut_score=score, cut_trial=cut_trial, trial=trial_id)

    def found() -> Neighbours:
        beside: dict[str, Position] = {row.side: (row.score, row.trial_id) for row in read()}
        return Neighbours(beside.get("worse"), beside.get("better"), "own" in beside)

    return found


def record(
    txn: Txn,
    *,
    rung: Rung,
    neighbours: Neighbours,
    lease: Lease,
    result: Result,
    entry: Entry,
    action: Action,
    cutoff: float | None,
) -> Rung:
    """
    Record a judged result at a locked rung, and move the rung's cut unless the value is NaN.

    If the rung was over (closed, and no trial waited there) and the trial waits there, the rung is
    no longer over.

    Returns:
        The rung with the new entry.
    """
    ranked = not math.isnan(result.value)
    cut = rung.cut
    if ranked:
        cut = insert(
            cut,
            (entry.score, lease.trial_id),
            worse=neighbours.worse,
            better=neighbours.better,
            quantile=rung.quantile,
        )
    if entry.waits and rung.is_over:
        txn.run(_REVIVE, rung=rung.id)
    cut_score, cut_trial = cut.entry or (None, None)
    txn.run_chain(
        _RECORD,
        rung=rung.id,
        to_n=cut.n,
        to_rank=cut.rank,
        to_score=cut_score,
        to_trial=cut_trial,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
        step=result.step,
        value=result.value,
        score=entry.score,
        ranked=ranked,
        ordinal=rung.n_entries,
        action=action,
        waiting=entry.waits or None,
        cutoff=None if cutoff is None or math.isnan(cutoff) else cutoff,
    )
    is_over = rung.is_over and not entry.waits
    return structs.replace(rung, n_entries=rung.n_entries + 1, cut=cut, is_over=is_over)


def best(txn: Txn, *, rung: Rung, n: int) -> list[Ranked]:
    """
    Read the `n` best ranked entries of a locked rung, best first.

    Of two entries with equal scores, the one with the lower trial id is better.
    """
    return [
        Ranked(row.trial_id, row.score, row.checkpoint_id, row.config or row.params)
        for row in txn.all(_BEST, rung=rung.id, most=n)
    ]
