"""The queue of PENDING trials, and the statements that lease a trial to a worker."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.chain import of
from studydb.db.dialect import after, is_listed, now
from studydb.db.schema import BY_ID, in_state, is_still, trial
from studydb.domain.life.states import State, Status
from studydb.domain.records import Claimant, QueuePosition
from studydb.store.studies import existing
from studydb.store.trials import NEW, inserting, status_of_study

_STUDY = trial.c.study_id == sa.bindparam("study")
_LEASE = {
    "worker_id": sa.bindparam("to_worker"),
    "token": sa.bindparam("to_token"),
    "lease_s": sa.bindparam("to_lease_s", type_=sa.Double),
    "lease_expires_at": after(now(), sa.bindparam("to_lease_s", type_=sa.Double)),
    "suspect_at": None,
    "flush_no": 0,
}


class LeasedTrial(NamedTuple):
    """The columns of a claimed trial's row that its attempt needs."""

    id: int
    uuid: str
    number: int
    priority: int
    bracket: int
    attempt: int
    name: str | None
    params: dict[str, Any]
    config: Any
    draw: int | None
    checkpoint_id: int | None
    time_total_s: float | None
    has_tags: bool | None
    resource_class: str


_LEASED = tuple(trial.c[name] for name in LeasedTrial._fields)

_AFTER_POSITION = sa.tuple_(
    sa.bindparam("after_priority", type_=sa.Integer),
    sa.bindparam("after_number", type_=sa.BigInteger),
)

_READY = (_STUDY, in_state(State.PENDING), trial.c.ready)
_IS_OPEN = status_of_study(sa.bindparam("study", type_=sa.BigInteger)) == Status.RUNNING
_RUNNABLE = (*_READY, trial.c.resource_class == sa.bindparam("fits", ""), _IS_OPEN)

FIRST_RUNNABLE = (
    sa.select(trial.c.id, trial.c.config.is_not(sa.null()).label("has_config"))
    .where(*_RUNNABLE, sa.tuple_(trial.c.priority, trial.c.number) > _AFTER_POSITION)
    .order_by(trial.c.priority, trial.c.number)
    .limit(1)
    .with_for_update(key_share=True, skip_locked=True)
)
"""
Locks and selects a resource class's first claimable trial that comes after a queue position.

SKIP LOCKED skips rows that other transactions have locked. SQLite has no such clause and relies on
BEGIN IMMEDIATE. ORDER BY has the order of `trial_claim`, an index of only the PENDING trials that
are ready. With another order, the planners of both databases would not use this index, and would
read the finished trials, too.
"""

LEASE_RUNNABLE = (
    sa.update(trial)
    .where(trial.c.id == of("runnable", trial.c.id), is_still(State.PENDING))
    .values(
        _LEASE
        | {
            "state": State.RUNNING,
            "attempt": trial.c.attempt + 1,
            "started_at": sa.func.coalesce(
                trial.c.started_at, now(), type_=trial.c.started_at.type
            ),
        }
    )
    .returning(*_LEASED)
)
"""Leases the trial that `FIRST_RUNNABLE` has locked, and returns the columns of `LeasedTrial`."""

_BEGINS_RUNNING = NEW | _LEASE | {"state": State.RUNNING, "attempt": 1, "started_at": now()}


def inserting_running(
    *conditions: sa.ColumnElement[bool], **known: sa.ColumnElement[Any]
) -> sa.Insert:
    """
    Make the INSERT … SELECT of a RUNNING trial; it inserts nothing unless the conditions hold.

    Args:
        known: Expressions for columns, instead of their bind parameters or defaults.
    """
    return inserting(_BEGINS_RUNNING | known, *conditions).returning(*_LEASED)


NOTHING_WAITS = ~sa.exists().where(
    trial.c.study_id == sa.bindparam("study"),
    in_state(State.PENDING),
    trial.c.ready,
    trial.c.resource_class == "",
)
"""For a study without resource classes: true if none of its trials is PENDING and ready."""

_of_fitting = (*_READY, is_listed(trial.c.resource_class, "fitting"))
NOTHING_FITTING_WAITS = (
    sa.select(trial.c.id).where(*_of_fitting).limit(1).scalar_subquery().is_(None)
)
"""True if none of the trials of the classes in the bind `fitting` is PENDING and ready."""


class Unless(StrEnum):
    """Which claimable trials keep an ask from making a new trial."""

    NONE = "none"
    WAITING = "waiting"
    """Any trial, in a study without requests for resources."""
    FITTING = "fitting"
    """The trials of the classes that are listed as `fitting`."""


MAY_START = {
    Unless.NONE: sa.true(),
    Unless.WAITING: NOTHING_WAITS,
    Unless.FITTING: NOTHING_FITTING_WAITS,
}
"""The condition on PENDING trials under which an ask makes a new trial, for each `Unless`."""


def unless(fits: Sequence[str] | None, *, if_nothing_waits: bool) -> Unless:
    """
    Choose a key of `MAY_START`.

    Args:
        fits: The classes whose trials the worker can start; None in a study without classes.
    """
    if not if_nothing_waits:
        return Unless.NONE
    return Unless.WAITING if fits is None else Unless.FITTING


def unless_binds(key: Unless, fits: Sequence[str] | None) -> dict[str, Any]:
    """Return the binds of the condition in `MAY_START`."""
    return {"fitting": fits} if key is Unless.FITTING else {}


_LEASED_ROW = Prepared(sa.select(*_LEASED).where(trial.c.id == sa.bindparam("trial")))

_LOCK_ALL_RUNNABLE = Prepared(
    sa.select(trial.c.id).where(*_READY).order_by(BY_ID).with_for_update(key_share=True)
)

_FIRST_OF_QUEUE = (
    sa.select(trial.c.id, trial.c.params, trial.c.config)
    .where(*_RUNNABLE)
    .order_by(trial.c.priority, trial.c.number)
    .limit(sa.bindparam("limit", type_=sa.Integer))
    .subquery()
)
_WITHOUT_CONFIG = Prepared(
    sa.select(_FIRST_OF_QUEUE.c.id, _FIRST_OF_QUEUE.c.params)
    .where(_FIRST_OF_QUEUE.c.config.is_(sa.null()))
    .order_by(_FIRST_OF_QUEUE.c.id)
)
_ADD_CONFIG = Prepared(
    sa.update(trial)
    .where(
        trial.c.id == sa.bindparam("trial"),
        is_still(State.PENDING),
        trial.c.config.is_(sa.null()),
    )
    .values(config=sa.bindparam("to_config", type_=trial.c.config.type))
)

ANY_RUNNABLE = (
    sa.select(trial.c.id)
    .where(_STUDY, in_state(State.PENDING), trial.c.ready)
    .order_by(trial.c.resource_class, trial.c.priority, trial.c.number)
    .limit(1)
)
"""Selects the id of one PENDING trial that is ready, if there is one."""

_ANY_RUNNABLE = Prepared(ANY_RUNNABLE)
_ANY_FITTING = Prepared(sa.select(trial.c.id).where(*_of_fitting).limit(1))


def claim_binds(
    claimant: Claimant, after_position: QueuePosition, resource_class: str
) -> dict[str, Any]:
    """Return the binds of `FIRST_RUNNABLE` and `LEASE_RUNNABLE`, except the id of the study."""
    return {
        **lease_binds(claimant),
        **({"fits": resource_class} if resource_class else {}),
        "after_priority": after_position.priority,
        "after_number": after_position.number,
    }


def lease_binds(claimant: Claimant) -> dict[str, Any]:
    """Return the binds of a lease in `LEASE_RUNNABLE` and `inserting_running`."""
    return {
        "to_worker": claimant.worker_id,
        "to_token": claimant.token,
        "to_lease_s": claimant.lease_s,
    }


def leased(txn: Txn, *, trial_id: int) -> LeasedTrial:
    """Read a trial's row as a claim returns it; raise UnknownStudy if the study was deleted."""
    return LeasedTrial._make(existing(txn.first(_LEASED_ROW, trial=trial_id)))


def without_config(
    txn: Txn, *, study_id: int, resource_class: str, limit: int
) -> list[tuple[int, Any]]:
    """
    Search a class's first `limit` claimable trials for those without a config; return (id, params).

    Such trials were made by an old version of studydb, which did not store configs.
    """
    rows = txn.all(_WITHOUT_CONFIG, study=study_id, fits=resource_class, limit=limit)
    return [(row.id, row.params) for row in rows]


def add_config(txn: Txn, *, trial_id: int, config: Mapping[str, Any]) -> None:
    """Store the config of a PENDING trial that has none."""
    txn.run(_ADD_CONFIG, trial=trial_id, to_config=dict(config))


def await_claims(txn: Txn, *, study_id: int) -> None:
    """
    On PostgreSQL, lock all PENDING trials that are ready, and so wait for claims in progress.

    A claim skips locked trials, so until this transaction ends, no claim starts one of them. A
    trial that becomes PENDING later is not locked.

    An earlier send of the same claim may hold such a lock, and a duplicate request must find the
    trial of the earlier send. The study's status does not matter: the study may have been paused
    after that claim began.
    """
    if txn.features.concurrent_writers:
        txn.all(_LOCK_ALL_RUNNABLE, study=study_id)


def any_runnable(txn: Txn, *, study_id: int, fits: Sequence[str] | None = None) -> bool:
    """
    Tell, without a lock, whether a study has a PENDING trial that is ready.

    The study's status does not matter.

    Args:
        fits: Only trials of these classes count; None for all trials.
    """
    if fits is None:
        return txn.first(_ANY_RUNNABLE, study=study_id) is not None
    return txn.first(_ANY_FITTING, study=study_id, fitting=fits) is not None
