"""
Trials that wait at rungs: find the best trials, and move a chosen trial to PENDING.

`rung_entry.waiting` is true from the report that pauses a trial at a rung until the trial is
promoted from there, ends, or is resumed by a person.
"""

from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import now
from studydb.db.schema import is_still, study, trial
from studydb.domain.life.decisions import DecidedBy, RungKey
from studydb.domain.life.states import State, Status
from studydb.domain.quantile import Cut, exact_cutoff
from studydb.domain.scheduling import RungView, WaitingTrial
from studydb.store.claims import NOTHING_WAITS
from studydb.store.studies import HAS_ROOM

_STUDY = sa.bindparam("study", type_=sa.BigInteger)
_ENTRIES = rung_entry.c.rung_id == rung.c.id
_PAUSED = (
    trial.c.study_id == _STUDY,
    is_still(State.PAUSED),
    trial.c.paused_by == DecidedBy.SCHEDULER,
)

_better = (
    sa.select(rung_entry.c.score)
    .where(
        _ENTRIES,
        rung_entry.c.ranked,
        sa.tuple_(rung_entry.c.score, rung_entry.c.trial_id)
        < sa.tuple_(rung.c.cut_score, rung.c.cut_trial_id),
    )
    .order_by(rung_entry.c.score.desc(), rung_entry.c.trial_id.desc())
    .limit(1)
    .correlate(rung)
    .scalar_subquery()
)


def _best_waiting(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    return (
        sa.select(column)
        .join(trial, trial.c.id == rung_entry.c.trial_id)
        .where(_ENTRIES, rung_entry.c.waiting, *_PAUSED)
        .order_by(rung_entry.c.score, rung_entry.c.ordinal)
        .limit(1)
        .correlate(rung)
        .scalar_subquery()
    )


_QUEUES = Prepared(
    sa.select(
        rung.c.bracket,
        rung.c.step,
        rung.c.quantile,
        rung.c.n_ranked,
        rung.c.cut_rank,
        rung.c.cut_score,
        rung.c.cut_trial_id,
        _better.label("better"),
        _best_waiting(rung_entry.c.trial_id).label("best_id"),
        _best_waiting(rung_entry.c.score).label("best_score"),
    ).where(rung.c.study_id == _STUDY)
)

_rung = (
    sa.select(rung.c.id)
    .where(
        rung.c.study_id == _STUDY,
        rung.c.bracket == sa.bindparam("of_bracket"),
        rung.c.step == sa.bindparam("at_step"),
    )
    .scalar_subquery()
)
_IS_WAITING = sa.func.coalesce(rung_entry.c.waiting, sa.false())
"""Keeps the planner from the index `rung_entry_waiting`, so that it finds an entry by its key."""

_OF_TRIAL = (rung_entry.c.trial_id == sa.bindparam("trial"), _IS_WAITING)

_PROMOTE = Prepared(
    sa.update(trial)
    .where(
        trial.c.id == sa.bindparam("trial"),
        *_PAUSED,
        sa.exists().where(rung_entry.c.rung_id == _rung, *_OF_TRIAL),
        sa.exists().where(study.c.id == _STUDY, study.c.status == Status.RUNNING, HAS_ROOM),
        NOTHING_WAITS,
    )
    .values(state=State.PENDING, ready=True, ready_at=None, paused_by=None)
    .returning(trial.c.id)
)
_MARK_PROMOTED = Prepared(
    sa.update(rung_entry)
    .where(rung_entry.c.rung_id == _rung, rung_entry.c.trial_id == sa.bindparam("trial"))
    .values(waiting=False, promoted_at=now())
)

_of_study = sa.select(rung.c.id).where(rung.c.study_id == _STUDY)
_ENTRIES_OF_TRIAL = (rung_entry.c.rung_id.in_(_of_study), *_OF_TRIAL)
_LEAVE = Prepared(sa.update(rung_entry).where(*_ENTRIES_OF_TRIAL).values(waiting=False))
_WAITS = Prepared(sa.select(rung_entry.c.rung_id).where(*_ENTRIES_OF_TRIAL).limit(1))


class Queues:
    """Implements `QueueView`: the rungs of a study, and the best trial that waits at each rung."""

    def __init__(self, rows: dict[RungKey, Any]) -> None:
        self._rows = rows

    def rung(self, key: RungKey) -> RungView:
        """Return a rung."""
        row = self._rows[key]
        entry = None if row.cut_trial_id is None else (row.cut_score, row.cut_trial_id)
        cut = Cut(n=row.n_ranked, rank=row.cut_rank, entry=entry)
        return RungView(n=cut.n, cutoff=exact_cutoff(cut, row.better, row.quantile))

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        """Return the best trial that waits at a rung."""
        row = self._rows[key]
        return None if row.best_id is None else WaitingTrial(key, row.best_id, row.best_score)


def read_queues(txn: Txn, *, study_id: int) -> Queues:
    """Read all rungs of a study with the trials that wait, in one statement and without locks."""
    rows = txn.all(_QUEUES, study=study_id)
    return Queues({RungKey(row.bracket, row.step): row for row in rows})


def promote(txn: Txn, *, study_id: int, chosen: WaitingTrial) -> bool:
    """
    Move a waiting trial to PENDING.

    Returns:
        False if the trial does not wait at the rung any more, another trial can be claimed, the
        study is not RUNNING, or `max_concurrent` trials run.
    """
    binds = {
        "study": study_id,
        "trial": chosen.trial_id,
        "of_bracket": chosen.rung.bracket,
        "at_step": chosen.rung.step,
    }
    if txn.count(_PROMOTE, **binds) == 0:
        return False
    txn.run(_MARK_PROMOTED, **binds)
    return True


def waits(txn: Txn, *, study_id: int, trial_id: int) -> bool:
    """Tell whether a trial waits at a rung, also if a person has paused it there."""
    return txn.first(_WAITS, study=study_id, trial=trial_id) is not None


def leave_rungs(txn: Txn, *, study_id: int, trial_id: int) -> None:
    """Let a trial, which has ended or which a person resumes, wait at no rung any more."""
    txn.run(_LEAVE, study=study_id, trial=trial_id)
