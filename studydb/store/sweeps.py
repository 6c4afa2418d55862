"""Sweeps by any worker: mark suspects, find lost leases, wake and unpause trials."""

from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import after, now
from studydb.db.schema import BY_ID, PAUSED_BY_STUDY, in_state, is_still, trial, worker
from studydb.domain.life.states import State, Status
from studydb.domain.records import RENEWALS_PER_LEASE, Lease, Process
from studydb.store import counters, workers
from studydb.store.leases import FENCE, HELD, Held, fence_binds, read_held
from studydb.store.trials import status_of_study

MOST = 100
"""The most trials that `suspect`, `wake`, `unpause` or `lost` finds, to keep transactions short."""

RECOVERY_S = 30.0
"""
How long `any_awaited` counts a trial after sweeps could first recover the trial. Normally sweeps
recover the trial within 17 s. But if its values make the recovery fail, the trial stays RUNNING.
"""

_STUDY = trial.c.study_id == sa.bindparam("study")
_EXPIRED = trial.c.lease_expires_at < now()
_RENEWAL_S = trial.c.lease_s * sa.literal(1 / RENEWALS_PER_LEASE, sa.Double)
_CONFIRMED = sa.and_(
    _EXPIRED, trial.c.suspect_at.is_not(None), after(trial.c.suspect_at, _RENEWAL_S) <= now()
)


def _some(name: str, *conditions: sa.ColumnElement[bool]) -> sa.CTE:
    return (
        sa.select(trial.c.id)
        .where(_STUDY, *conditions)
        .order_by(BY_ID)
        .limit(MOST)
        .with_for_update(key_share=True, skip_locked=True)
        .cte(name)
        .prefix_with("MATERIALIZED")
    )


_IS_EXPIRED = (in_state(State.RUNNING), _EXPIRED)
_IN_BACK_OFF = (in_state(State.PENDING), ~trial.c.ready)
_PAUSED_WITH_STUDY = (
    PAUSED_BY_STUDY,
    status_of_study(sa.bindparam("study", type_=sa.BigInteger)) == Status.RUNNING,
)

_expired = _some("expired", *_IS_EXPIRED, trial.c.suspect_at.is_(None))
SUSPECT = Prepared(
    sa.update(trial)
    .where(trial.c.id.in_(sa.select(_expired.c.id)), is_still(State.RUNNING))
    .values(suspect_at=now())
    .returning(trial.c.id)
)

_waited = _some("waited", *_IN_BACK_OFF, trial.c.ready_at <= now())
WAKE = Prepared(
    sa.update(trial)
    .where(trial.c.id.in_(sa.select(_waited.c.id)), is_still(State.PENDING))
    .values(ready=True, ready_at=None)
    .returning(trial.c.id)
)

_paused = _some("paused", *_PAUSED_WITH_STUDY)
UNPAUSE = Prepared(
    sa.update(trial)
    .where(trial.c.id.in_(sa.select(_paused.c.id)), is_still(State.PAUSED))
    .values(state=State.PENDING, ready=True, ready_at=None, paused_by=None)
    .returning(trial.c.id)
)


def _any_trial(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """
    Make an expression that tells whether any trial meets the conditions.

    The docstring of `_any_waiting` in `store/promotions.py` says why LIMIT is used, not EXISTS.
    """
    return sa.select(trial.c.id).where(_STUDY, *conditions).limit(1).scalar_subquery().is_not(None)


_first_ready_at = (
    sa.select(trial.c.ready_at)
    .where(_STUDY, *_IN_BACK_OFF)
    .order_by(trial.c.ready_at)
    .limit(1)
    .scalar_subquery()
)
HAS_WAITED = _first_ready_at <= now()
"""
True if a PENDING trial's back-off is over, and no sweep has woken the trial yet; NULL if each
PENDING trial is ready. Only the back-off that ends first is compared, because PostgreSQL uses no
index for a comparison with `clock_timestamp()`.
"""

_ANY_DUE = Prepared(
    sa.select(
        sa.or_(HAS_WAITED, _any_trial(*_IS_EXPIRED), _any_trial(*_PAUSED_WITH_STUDY)).label(
            "is_due"
        )
    )
)

_AWAITED = sa.or_(
    trial.c.suspect_at.is_(None),
    after(trial.c.suspect_at, _RENEWAL_S + sa.literal(RECOVERY_S, sa.Double)) > now(),
)
_OF_OTHERS = trial.c.worker_id != sa.bindparam("worker")
_ANY_AWAITED = Prepared(
    sa.select(_any_trial(*_IS_EXPIRED, _AWAITED, _OF_OTHERS).label("is_awaited"))
)

_LEASE_COLUMNS = (
    trial.c.id,
    trial.c.study_id,
    trial.c.number,
    trial.c.bracket,
    trial.c.attempt,
    trial.c.token,
    trial.c.lease_s,
)

_LOST = Prepared(
    sa.select(*_LEASE_COLUMNS)
    .where(_STUDY, in_state(State.RUNNING), _CONFIRMED)
    .order_by(BY_ID)
    .limit(MOST)
)


_N_LOST = Prepared(
    sa.select(sa.func.count().label("n"))
    .select_from(trial)
    .where(_STUDY, in_state(State.RUNNING), _CONFIRMED)
)

_OF_HOST = Prepared(
    sa.select(*_LEASE_COLUMNS, *(worker.c[name] for name in workers.PROCESS_FIELDS))
    .join(worker, worker.c.id == trial.c.worker_id)
    .where(
        _STUDY,
        in_state(State.RUNNING),
        worker.c.boot_id == sa.bindparam("of_boot"),
        worker.c.pid_namespace == sa.bindparam("of_namespace"),
    )
    .order_by(BY_ID)
)

_HOLD_LOST = {
    known_dead: Prepared(
        sa.select(*HELD)
        .where(*FENCE, *(() if known_dead else (_CONFIRMED,)))
        .with_for_update(key_share=True, skip_locked=True, of=trial)
    )
    for known_dead in (False, True)
}


def any_due(txn: Txn, *, study_id: int) -> bool:
    """
    Tell, without a lock, whether `wake`, `suspect`, `unpause` or `lost` may find a trial.

    Every sweep asks this first. If nothing is due, the sweep sends none of its four statements, and
    takes no lock.
    """
    row = txn.first(_ANY_DUE, study=study_id)
    return row is not None and bool(row.is_due)


def any_awaited(txn: Txn, *, study_id: int, worker_id: int) -> bool:
    """Tell whether another worker's trial has an expired lease and sweeps will soon recover it."""
    row = txn.first(_ANY_AWAITED, study=study_id, worker=worker_id)
    return row is not None and bool(row.is_awaited)


def suspect(txn: Txn, *, study_id: int) -> int:
    """
    Mark as suspects the trials whose leases have expired, and count these trials.

    A flush, a save or a renewal of the attempt clears the mark.
    """
    return txn.count(SUSPECT, study=study_id)


def wake(txn: Txn, *, study_id: int) -> int:
    """Set `ready` of PENDING trials whose back-off is over, and count these trials."""
    return txn.count(WAKE, study=study_id)


def unpause(txn: Txn, *, study_id: int) -> int:
    """If the study is RUNNING, move the trials that were paused with it to PENDING; count them."""
    n = txn.count(UNPAUSE, study=study_id)
    if n:
        counters.move(txn, study_id=study_id, key=0, out_of=State.PAUSED, into=State.PENDING, n=n)
    return n


def lost(txn: Txn, *, study_id: int) -> list[Lease]:
    """Find up to 100 expired leases whose trials have been suspects for a renewal period."""
    return [_lease(row) for row in txn.all(_LOST, study=study_id)]


def count_lost(txn: Txn, *, study_id: int) -> int:
    """Count the trials that `lost` would find without its limit of 100."""
    row = txn.first(_N_LOST, study=study_id)
    assert row is not None
    return int(row.n)


def of_host(txn: Txn, *, study_id: int, process: Process) -> list[tuple[Lease, Process]]:
    """Find the leases whose holders have the boot id and pid namespace of `process`."""
    rows = txn.all(
        _OF_HOST, study=study_id, of_boot=process.boot_id, of_namespace=process.pid_namespace
    )
    return [(_lease(row), workers.process_of(row)) for row in rows]


def hold_lost(txn: Txn, *, lease: Lease, known_dead: bool) -> Held | None:
    """
    Lock the trial of a lost lease.

    Args:
        known_dead: Whether the holder's process is dead. If so, the lease need not have expired.

    Returns:
        None if the lease has ended, or another transaction has locked the trial. If `known_dead` is
        False, also None if the lease was renewed.
    """
    row = txn.first(_HOLD_LOST[known_dead], **fence_binds(lease))
    return None if row is None else read_held(row)


def _lease(row: Any) -> Lease:
    return Lease(
        study_id=row.study_id,
        trial_id=row.id,
        number=row.number,
        bracket=row.bracket,
        attempt=row.attempt,
        token=row.token,
        lease_s=row.lease_s,
    )
