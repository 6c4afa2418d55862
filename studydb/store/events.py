"""Events: who did what, and when. Rows are never changed."""

import itertools
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import event, trial
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.listed_rows import StudyProblem
from studydb.domain.records import LastError, Lease, Request

_COLUMNS = ("study_id", "trial_id", "attempt", "worker_id", "kind", "actor", "data", "token")

_APPEND = Prepared(
    sa.insert(event).values({name: sa.bindparam(name) for name in _COLUMNS} | {"at": now()})
)

PROBLEMS = (
    EventKind.CHECKPOINT_FAILED,
    EventKind.CHECKPOINT_CORRUPT,
    EventKind.CONFIG_NOT_READ,
    EventKind.RULE_NOT_COMPARED,
    EventKind.RECOVERY_FAILED,
    EventKind.MODEL_FAILED,
)
"""Kinds of events that `status` shows as trouble: training continues, but a person should act."""

PROBLEMS_SCANNED = 2_000
"""
How many of a study's newest events are searched for problems, for the last error, for what has
stopped the study or a trial, and for what a custom scheduler has said.

Claims and completed trials add no event. Among others, these add one event each: a failed or lost
attempt, a promotion, the closing of a rung, a person's request, a trial that a custom rule stops,
and a judgement for which a custom scheduler gives a reason.
"""


class RecordedFailure(NamedTuple):
    """The failure of an attempt. Failures that are alike have the same fingerprint."""

    trial_id: int
    fingerprint: str | None


FAILURES_SCANNED = 200
"""How many of a study's newest events are searched for failures that are alike."""


PROMOTIONS_SCANNED = 100
"""How many of a study's newest events are searched for promotions."""


def _newest(limit: int) -> sa.Subquery:
    columns = (
        event.c[name] for name in ("id", "trial_id", "attempt", "kind", "actor", "data", "at")
    )
    of_study = sa.select(*columns).where(event.c.study_id == sa.bindparam("study"))
    return of_study.order_by(event.c.id.desc()).limit(limit).subquery()


_OF_PROBLEMS = _newest(PROBLEMS_SCANNED)
_COUNTED = (
    sa.select(sa.func.max(_OF_PROBLEMS.c.id).label("newest"), sa.func.count().label("times"))
    .where(sa.or_(*(_OF_PROBLEMS.c.kind == kind for kind in PROBLEMS)))
    .group_by(_OF_PROBLEMS.c.kind)
    .subquery()
)
_PROBLEMS = Prepared(
    sa.select(
        event.c.kind, event.c.at, _COUNTED.c.times, trial.c.number, event.c.attempt, event.c.data
    )
    .join(_COUNTED, _COUNTED.c.newest == event.c.id)
    .outerjoin(trial, trial.c.id == event.c.trial_id)
    .order_by(event.c.id.desc())
)

_OF_PROMOTIONS = _newest(PROMOTIONS_SCANNED)
_PROMOTED = Prepared(
    sa.select(_OF_PROMOTIONS.c.trial_id).where(_OF_PROMOTIONS.c.kind == EventKind.PROMOTED)
)

_OF_FAILURES = _newest(FAILURES_SCANNED)
_FAILURES = Prepared(
    sa.select(_OF_FAILURES.c.trial_id, _OF_FAILURES.c.kind, _OF_FAILURES.c.data)
    .where(
        sa.or_(
            _OF_FAILURES.c.kind == EventKind.FAILED, _OF_FAILURES.c.kind == EventKind.STUDY_RUNNING
        )
    )
    .order_by(_OF_FAILURES.c.id.desc())
)
_LAST_FAILURE = Prepared(
    sa.select(trial.c.number, _OF_PROBLEMS.c.attempt, _OF_PROBLEMS.c.data)
    .join(trial, trial.c.id == _OF_PROBLEMS.c.trial_id)
    .where(
        sa.or_(_OF_PROBLEMS.c.kind == EventKind.FAILED, _OF_PROBLEMS.c.kind == EventKind.LOST),
        _OF_PROBLEMS.c.data.is_not(None),
    )
    .order_by(_OF_PROBLEMS.c.id.desc())
    .limit(1)
)

_LIMIT_REACHED = Prepared(
    sa.select(_OF_PROBLEMS.c.data)
    .where(
        _OF_PROBLEMS.c.kind == EventKind.STUDY_STOPPED,
        _OF_PROBLEMS.c.actor == Actor.LIMIT,
        _OF_PROBLEMS.c.at <= sa.bindparam("until", type_=event.c.at.type),
    )
    .order_by(_OF_PROBLEMS.c.id.desc())
    .limit(1)
)

_RULE_MET = Prepared(
    sa.select(_OF_PROBLEMS.c.data)
    .where(
        _OF_PROBLEMS.c.kind == EventKind.RULE_MET,
        _OF_PROBLEMS.c.trial_id == sa.bindparam("trial", type_=event.c.trial_id.type),
    )
    .order_by(_OF_PROBLEMS.c.id.desc())
    .limit(1)
)

_JUDGED = Prepared(
    sa.select(_OF_PROBLEMS.c.trial_id, _OF_PROBLEMS.c.data).where(
        _OF_PROBLEMS.c.kind == EventKind.JUDGED
    )
)

_SCHEDULER_IDLE = Prepared(
    sa.select(_OF_PROBLEMS.c.data)
    .where(_OF_PROBLEMS.c.kind == EventKind.SCHEDULER_IDLE)
    .order_by(_OF_PROBLEMS.c.id.desc())
    .limit(1)
)

_BY_TOKEN = Prepared(sa.select(event.c.data).where(event.c.token == sa.bindparam("by_token")))


def append(
    txn: Txn,
    *,
    study_id: int,
    kind: EventKind,
    actor: str,
    lease: Lease | None = None,
    trial_id: int | None = None,
    worker_id: int | None = None,
    data: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> None:
    """
    Append one event.

    Args:
        lease: Names the attempt of the event; None for an event without an attempt.
        trial_id: The trial of an event without an attempt.
        actor: An `Actor`, or a person as user@host.
        token: The token of a request. It is UNIQUE.

    Raises:
        Duplicate: Another event has this token already.
    """
    txn.run(
        _APPEND,
        study_id=study_id,
        trial_id=lease.trial_id if lease else trial_id,
        attempt=lease and lease.attempt,
        worker_id=worker_id,
        kind=kind,
        actor=actor,
        data=dict(data) if data is not None else None,
        token=token,
    )


def append_request(
    txn: Txn,
    *,
    study_id: int,
    kind: EventKind,
    request: Request,
    worker_id: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """
    Append the event of a person's request.

    Raises:
        Duplicate: The same request was already stored (its reply was lost).
    """
    append(
        txn,
        study_id=study_id,
        kind=kind,
        actor=request.actor,
        worker_id=worker_id,
        data=data,
        token=request.token,
    )


def problems(txn: Txn, *, study_id: int) -> list[StudyProblem]:
    """
    Read the newest event of each kind in `PROBLEMS`, newest first, and count each kind.

    Only the study's newest 2,000 events are searched and counted.
    """
    return [StudyProblem._make(row) for row in txn.all(_PROBLEMS, study=study_id)]


def data_of(txn: Txn, *, token: str) -> dict[str, Any]:
    """Read the data of the event with this token; empty if there is no such event."""
    row = txn.first(_BY_TOKEN, by_token=token)
    return dict(row.data or {}) if row else {}


def _texts(data: Any) -> dict[str, str]:
    """Return the texts of an event's data; the database role of workers can insert any JSON."""
    known = data if isinstance(data, dict) else {}
    return {name: value for name, value in known.items() if isinstance(value, str)}


def failures_since_resumption(txn: Txn, *, study_id: int) -> list[RecordedFailure]:
    """Read, from the newest events, the failures since the study was last resumed, newest first."""
    found = txn.all(_FAILURES, study=study_id)
    newer = itertools.takewhile(lambda row: row.kind != EventKind.STUDY_RUNNING, found)
    return [RecordedFailure(row.trial_id, _texts(row.data).get("fingerprint")) for row in newer]


def last_error(txn: Txn, *, study_id: int) -> LastError | None:
    """Find, in the newest events, the last attempt that failed, or was lost with a known cause."""
    row = txn.first(_LAST_FAILURE, study=study_id)
    if row is None:
        return None
    texts = _texts(row.data)
    return LastError(row.number, row.attempt, texts.get("type", ""), texts.get("message", ""))


def limit_reached(txn: Txn, *, study_id: int, until: datetime) -> str | None:
    """
    Find which limit or stop rule last stopped a study, up to the time `until`.

    Returns:
        A text such as "max_steps is reached (9 of 9 steps)"; None if the event is not among the
        study's newest events.
    """
    row = txn.first(_LIMIT_REACHED, study=study_id, until=until)
    return None if row is None else _texts(row.data).get("reason")


def scheduler_idle(txn: Txn, *, study_id: int) -> dict[str, str]:
    """Read the texts of the newest SCHEDULER_IDLE event (see `EventKind`); {} if there is none."""
    row = txn.first(_SCHEDULER_IDLE, study=study_id)
    return {} if row is None else _texts(row.data)


def promoted(txn: Txn, *, study_id: int) -> set[int]:
    """Find the ids of the trials whose promotion is among a study's newest 100 events."""
    return {row.trial_id for row in txn.all(_PROMOTED, study=study_id)}


def scheduler_reasons(txn: Txn, *, study_id: int) -> dict[tuple[int, int], str]:
    """
    Read from a study's newest events how a custom scheduler explained its judgements.

    Returns:
        The explanations, by trial id and step of the judged result.
    """
    found = {}
    for row in txn.all(_JUDGED, study=study_id):
        data = row.data if isinstance(row.data, dict) else {}
        step, why = data.get("step"), data.get("why")
        if isinstance(step, int) and isinstance(why, str):
            found[row.trial_id, step] = why
    return found


def rule_met(txn: Txn, *, study_id: int, trial_id: int) -> str | None:
    """
    Find which custom rule has ended a trial.

    Returns:
        The rule, and its reason if it gave one, such as "my_rules:TooSlow(limit=3): too slow"; None
        if the event is not among the study's newest events.
    """
    row = txn.first(_RULE_MET, study=study_id, trial=trial_id)
    texts = {} if row is None else _texts(row.data)
    if "rule" not in texts:
        return None
    return f"{texts['rule']}: {texts['reason']}" if texts.get("reason") else texts["rule"]
