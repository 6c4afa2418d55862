"""Who did what when: append-only."""

import itertools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import event, trial
from studydb.domain.listed_rows import StorageProblem

_COLUMNS = ("study_id", "trial_id", "attempt", "worker_id", "kind", "actor", "data", "token")

_APPEND = Prepared(
    sa.insert(event).values({name: sa.bindparam(name) for name in _COLUMNS} | {"at": now()})
)

PROBLEMS = ("checkpoint failed", "checkpoint corrupt", "config not read", "recovery failed")
"""What a person should know of although training goes on."""

NEWEST = 2_000
"""How many of a study's newest events are searched for problems; an attempt leaves one or two."""

_RECENT = (
    sa.select(event.c.id, event.c.trial_id, event.c.attempt, event.c.kind, event.c.data, event.c.at)
    .where(event.c.study_id == sa.bindparam("study"))
    .order_by(event.c.id.desc())
    .limit(NEWEST)
    .subquery()
)
_TALLY = (
    sa.select(sa.func.max(_RECENT.c.id).label("newest"), sa.func.count().label("times"))
    .where(sa.or_(*(_RECENT.c.kind == kind for kind in PROBLEMS)))
    .group_by(_RECENT.c.kind)
    .subquery()
)
_PROBLEMS = Prepared(
    sa.select(
        event.c.kind, event.c.at, _TALLY.c.times, trial.c.number, event.c.attempt, event.c.data
    )
    .join(_TALLY, _TALLY.c.newest == event.c.id)
    .join(trial, trial.c.id == event.c.trial_id)
    .order_by(event.c.id.desc())
)

_RESUMED = "study running"
FAILURES_SCANNED = 200
"""In so many of a study's newest events are failures looked for, by its guard and for people."""

_NEWEST = (
    sa.select(event.c.id, event.c.trial_id, event.c.attempt, event.c.kind, event.c.data, event.c.at)
    .where(event.c.study_id == sa.bindparam("study"))
    .order_by(event.c.id.desc())
    .limit(FAILURES_SCANNED)
    .subquery()
)
_FAILURES = Prepared(
    sa.select(_NEWEST.c.trial_id, _NEWEST.c.kind, _NEWEST.c.data)
    .where(sa.or_(_NEWEST.c.kind == "failed", _NEWEST.c.kind == _RESUMED))
    .order_by(_NEWEST.c.id.desc())
)
_LAST_FAILURE = Prepared(
    sa.select(trial.c.number, _NEWEST.c.attempt, _NEWEST.c.kind, _NEWEST.c.data, _NEWEST.c.at)
    .join(trial, trial.c.id == _NEWEST.c.trial_id)
    .where(
        sa.or_(_NEWEST.c.kind == "failed", _NEWEST.c.kind == "lost"), _NEWEST.c.data.is_not(None)
    )
    .order_by(_NEWEST.c.id.desc())
    .limit(1)
)

_BY_TOKEN = Prepared(sa.select(event.c.data).where(event.c.token == sa.bindparam("by_token")))


def append(
    txn: Txn,
    *,
    study_id: int,
    kind: str,
    actor: str,
    trial_id: int | None = None,
    attempt: int | None = None,
    worker_id: int | None = None,
    data: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> None:
    """
    Append one event.

    Args:
        actor: "worker", "sweep", or a person's user@host.
        token: Makes the event, and the transaction that appends it, happen once.

    Raises:
        Duplicate: The token is there already.
    """
    txn.run(
        _APPEND,
        study_id=study_id,
        trial_id=trial_id,
        attempt=attempt,
        worker_id=worker_id,
        kind=kind,
        actor=actor,
        data=dict(data) if data is not None else None,
        token=token,
    )


def problems(txn: Txn, *, study_id: int) -> list[StorageProblem]:
    """The newest event of each kind of problem, newest first."""
    return [StorageProblem._make(row) for row in txn.all(_PROBLEMS, study=study_id)]


def data_of(txn: Txn, *, token: str) -> dict[str, Any]:
    """What the event with this token recorded."""
    row = txn.first(_BY_TOKEN, by_token=token)
    return dict(row.data or {}) if row else {}


def facts_of(row: Any) -> dict[str, str]:
    """What an event says, as texts: whoever may insert events may have written anything."""
    data = row.data if isinstance(row.data, dict) else {}
    return {name: value for name, value in data.items() if isinstance(value, str)}


def failures_since_resumption(txn: Txn, *, study_id: int) -> list[Any]:
    """Failures among a study's newest events, newest first, up to its last resumption."""
    found = txn.all(_FAILURES, study=study_id)
    return list(itertools.takewhile(lambda row: row.kind != _RESUMED, found))


def last_failure(txn: Txn, *, study_id: int) -> Any | None:
    """The newest failure or loss with a cause, if it is among a study's newest events."""
    return txn.first(_LAST_FAILURE, study=study_id)
