"""
Rungs that close: the best of the trials that wait there are kept, and the others are given up.

The transaction that closes a rung uses the index of waiting trials to find the worst trial that is
kept, and stores only this trial's position (score and ordinal). Later transactions end the trials
after this position, 100 at a time, except those that a person has paused. The stored position never
changes.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import is_listed, now
from studydb.db.schema import trial
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.store.promotions import ANY_TO_GIVE_UP, IN_ORDER, IS_TO_GIVE_UP, NONE_WAITS
from studydb.store.rungs import NONE_KEPT, Rung

MOST = 100
"""The most trials that one transaction gives up, and the most closed rungs that it locks."""

MOST_KEPT = 2**62
"""The most trials that a rung keeps; the user's code may ask for more than a bigint can hold."""

_STUDY = sa.bindparam("study", type_=sa.BigInteger)
_WAITING = (rung_entry.c.rung_id == sa.bindparam("rung"), rung_entry.c.waiting)

_BY_PERSON = (
    sa.select(
        sa.case(
            (sa.or_(trial.c.paused_by == DecidedBy.PERSON, trial.c.request == Action.PAUSE), 1),
            else_=0,
        )
    )
    .where(trial.c.id == rung_entry.c.trial_id)
    .correlate(rung_entry)
    .scalar_subquery()
)
"""
1 if a person has paused the trial of an entry, or has requested its pause; else 0.

This is a subquery, because a join would be planned as a hash join with all trials.
"""

_LAST_KEPT = Prepared(
    sa.select(*IN_ORDER)
    .where(*_WAITING, _BY_PERSON == 0)
    .order_by(*IN_ORDER)
    .limit(1)
    .offset(sa.bindparam("n_before", type_=sa.BigInteger))
)
_ALL_KEPT = Prepared(
    sa.select(*IN_ORDER)
    .where(*_WAITING)
    .order_by(_BY_PERSON, *IN_ORDER)
    .limit(sa.bindparam("keep", type_=sa.BigInteger))
)
_CLOSE = Prepared(
    sa.update(rung)
    .where(rung.c.id == sa.bindparam("rung"))
    .values(
        closed_at=now(),
        closed_cutoff=sa.bindparam("to_cutoff", type_=sa.Double),
        closed_ordinal=sa.bindparam("to_ordinal", type_=sa.BigInteger),
    )
)

_LOCK_CLOSED = Prepared(
    sa.select(rung.c.id)
    .where(
        rung.c.study_id == _STUDY,
        ~rung.c.is_over,
        rung.c.closed_at.is_not(None),
        sa.or_(ANY_TO_GIVE_UP, NONE_WAITS),
    )
    .order_by(rung.c.bracket, rung.c.step)
    .limit(MOST)
    .with_for_update(key_share=True, skip_locked=True)
)

_GIVEN_UP = Prepared(
    sa.select(trial.c.id, trial.c.n_results, rung_entry.c.rung_id)
    .select_from(rung)
    .join(rung_entry, rung_entry.c.rung_id == rung.c.id)
    .join(trial, trial.c.id == rung_entry.c.trial_id)
    .where(rung.c.id == sa.bindparam("rung"), *IS_TO_GIVE_UP)
    .order_by(rung_entry.c.score, rung_entry.c.ordinal)
    .limit(sa.bindparam("most", type_=sa.Integer))
    .with_for_update(key_share=True, skip_locked=True, of=trial)
)
_LEAVE = Prepared(
    sa.update(rung_entry)
    .where(
        rung_entry.c.rung_id == sa.bindparam("rung"),
        rung_entry.c.trial_id == sa.bindparam("trial"),
    )
    .values(waiting=False)
)
_END = Prepared(
    sa.update(rung).where(is_listed(rung.c.id, "rungs"), NONE_WAITS).values(is_over=True)
)


class GivenUp(NamedTuple):
    """A locked trial that a closed rung did not keep, with its number of results and its rung."""

    id: int
    n_results: int
    rung_id: int


def close(txn: Txn, *, rung: Rung, keep: int) -> int:
    """
    Close a locked rung, and keep the best waiting trials; equal scores rank in order of arrival.

    The `keep` places go first to trials that no person has paused, then to trials that a person has
    paused. A trial that a person has paused is kept even without a place, if it ranks above the
    worst trial that has a place.

    Returns:
        How many places are taken: `keep`, or fewer if fewer trials wait; 0 if `keep` is negative.
    """
    keep = max(0, min(keep, MOST_KEPT))
    kept: Sequence[Any] = ()
    if keep and (last := txn.first(_LAST_KEPT, rung=rung.id, n_before=keep - 1)) is not None:
        kept, n_kept = [last], keep
    elif keep:  # without the trials that a person has paused, fewer than `keep` trials wait
        kept = txn.all(_ALL_KEPT, rung=rung.id, keep=keep)
        n_kept = len(kept)
    else:
        n_kept = 0
    cutoff, ordinal = max(map(tuple, kept), default=(-math.inf, NONE_KEPT))
    txn.run(_CLOSE, rung=rung.id, to_cutoff=cutoff, to_ordinal=ordinal)
    return n_kept


def lock_closed(txn: Txn, *, study_id: int) -> list[int]:
    """
    Lock at most 100 closed rungs that have trials to give up, or have no waiting trial left.

    Rungs that are over, or that another transaction has locked, are left out. While a rung is
    locked, no trial begins to wait at it.

    Returns:
        The ids of the rungs.
    """
    return [row.id for row in txn.all(_LOCK_CLOSED, study=study_id)]


def lock_given_up(txn: Txn, *, study_id: int, rungs: Sequence[int]) -> list[GivenUp]:
    """
    Lock at most 100 trials that wait at closed rungs and were not kept.

    Trials that a person has paused are left out. Trials that another transaction has locked are
    skipped, so the order of the locks cannot cause a deadlock.
    """
    found: list[GivenUp] = []
    for one in rungs:
        if len(found) < MOST:
            rows = txn.all(_GIVEN_UP, study=study_id, rung=one, most=MOST - len(found))
            found += map(GivenUp._make, rows)
    return found


def leave(txn: Txn, *, trial: GivenUp) -> None:
    """Record that a trial that was given up no longer waits at its rung."""
    txn.run(_LEAVE, rung=trial.rung_id, trial=trial.id)


def end_rungs(txn: Txn, *, rungs: Sequence[int]) -> None:
    """Set `is_over` for each of these locked, closed rungs at which no trial waits."""
    txn.run(_END, rungs=rungs)
