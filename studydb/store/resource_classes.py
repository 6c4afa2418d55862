"""
The resource classes of a study, their queues of PENDING trials, and the loads of its workers.

A class is the trials of a study that ask for the same resources. The name of the class, stored in
`trial.resource_class`, is the text of the request. The class "" holds the trials that have no
request; they ask for what the study asks for. A study has no rows in `resource_class` until a
trial, or the study, asks for resources. Until then its workers claim without reading classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import resource_class
from studydb.db.dialect import after, is_listed, now, texts_of
from studydb.db.schema import by_id, in_state, is_still, study, trial, worker
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import State, Status
from studydb.domain.records import Lease, QueuePosition
from studydb.domain.resources import OF_STUDY, Capacity, Resources, read_resources
from studydb.store.studies import HAS_ROOM

MOST = 64
"""The most classes of one study; bounded, because a claim reads the first trials of each class."""

_OF_STUDY = resource_class.c.study_id == sa.bindparam("study", type_=sa.BigInteger)
_CLASSES = Prepared(sa.select(resource_class.c.name, resource_class.c.request).where(_OF_STUDY))
_STUDIES = Prepared(
    sa.select(resource_class.c.study_id).where(resource_class.c.name == OF_STUDY).limit(1000)
)
_INSERT = Prepared(
    postgresql.insert(resource_class)  # SQLite has the same ON CONFLICT clause
    .values({name: sa.bindparam(name) for name in ("study_id", "name", "request")})
    .on_conflict_do_nothing()
)
_CHANGE = Prepared(
    sa.update(resource_class)
    .where(_OF_STUDY, resource_class.c.name == sa.bindparam("of_name"))
    .values(request=sa.bindparam("to_request"))
)

_position: sa.ColumnElement[Any] = (
    sa.cast(trial.c.priority, sa.Text).concat(":").concat(sa.cast(trial.c.number, sa.Text))
)
_first_positions = texts_of(
    sa.select(_position.label("text"))
    .where(
        trial.c.study_id == resource_class.c.study_id,
        in_state(State.PENDING),
        trial.c.ready,
        trial.c.resource_class == resource_class.c.name,
        sa.tuple_(trial.c.priority, trial.c.number)
        > sa.tuple_(
            sa.bindparam("after_priority", type_=sa.Integer),
            sa.bindparam("after_number", type_=sa.BigInteger),
        ),
    )
    .order_by(trial.c.priority, trial.c.number)
    .limit(sa.bindparam("depth", type_=sa.Integer))
    .correlate(resource_class)
)
_is_open = (
    sa.select(sa.and_(study.c.status == Status.RUNNING, HAS_ROOM))
    .where(study.c.id == resource_class.c.study_id)
    .correlate(resource_class)
    .scalar_subquery()
)
_QUEUES = Prepared(
    sa.select(
        resource_class.c.name,
        resource_class.c.request,
        _is_open.label("is_open"),
        _first_positions.label("positions"),
    ).where(_OF_STUDY)
)

_is_alive = (
    worker.c.study_id == sa.bindparam("study"),
    worker.c.ended_at.is_(None),
    after(worker.c.seen_at, worker.c.lease_s) > now(),
)
_CAPACITIES = Prepared(
    sa.select(worker.c.resources).where(*_is_alive).order_by(by_id(worker).desc()).limit(1000)
)

_stamped_attempt = sa.case((trial.c.resources.is_not(sa.null()), trial.c.attempt))
_running = (trial.c.worker_id, trial.c.resource_class, trial.c.resources, _stamped_attempt)
_held = (
    sa.select(
        trial.c.worker_id,
        trial.c.resource_class,
        trial.c.resources,
        _stamped_attempt.label("attempt"),
        sa.func.count().label("n"),
    )
    .where(trial.c.study_id == sa.bindparam("study"), in_state(State.RUNNING))
    .group_by(*_running)
    .subquery()
)
_LOADS = Prepared(
    sa.select(
        worker.c.uuid,
        worker.c.resources,
        worker.c.reserved_for,
        _held.c.resource_class,
        _held.c.resources.label("held"),
        _held.c.attempt,
        _held.c.n,
    )
    .outerjoin(_held, _held.c.worker_id == worker.c.id)
    .where(*_is_alive)
    .order_by(by_id(worker).desc(), _held.c.resource_class)
    .limit(10_000)
)

_other = worker.alias("other")
_RESERVE = Prepared(
    sa.update(worker)
    .where(
        worker.c.id == sa.bindparam("worker"),
        ~sa.exists().where(
            _other.c.study_id == sa.bindparam("study"),
            _other.c.id != sa.bindparam("worker"),
            _other.c.reserved_for == sa.bindparam("number", type_=sa.BigInteger),
            _other.c.ended_at.is_(None),
            after(_other.c.seen_at, _other.c.lease_s) > now(),
        ),
    )
    .values(reserved_for=sa.bindparam("number", type_=sa.BigInteger))
    .returning(worker.c.id)
)
_UNRESERVE = Prepared(
    sa.update(worker)
    .where(worker.c.id == sa.bindparam("worker"), worker.c.reserved_for.is_not(None))
    .values(reserved_for=None)
)

_MOVABLE = (trial.c.study_id == sa.bindparam("study"), is_listed(trial.c.id, "ids"))
_MOVE = Prepared(
    sa.update(trial)
    .where(*_MOVABLE, sa.or_(is_still(State.PENDING), is_still(State.PAUSED)))
    .values(resource_class=sa.bindparam("to_class"))
    .returning(trial.c.id)
)
_MOVE_OF_ATTEMPT = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"), trial.c.attempt == sa.bindparam("of_attempt"))
    .values(
        resource_class=sa.bindparam("to_class"),
        resources=sa.bindparam("to_held", type_=trial.c.resources.type),
    )
)
_ASKED_BY = Prepared(
    sa.select(trial.c.resource_class, trial.c.resources).where(trial.c.id == sa.bindparam("trial"))
)


class ClassQueue(NamedTuple):
    """
    The request of a class, and the first positions of its queue.

    Attributes:
        positions: Ascending; None if the study is not RUNNING, or `max_concurrent` trials run.
    """

    request: Resources
    positions: list[QueuePosition] | None


@dataclass(slots=True)
class Load:
    """
    What a live worker offers, and what its trials use.

    Attributes:
        offers: Unlimited for an own loop without a capacity: every request fits such a loop.
        reserved_for: The number of the trial for which the worker keeps its resources free; None
            if the worker is not reserved.
    """

    offers: Capacity
    uses: Resources
    reserved_for: int | None


def read(txn: Txn, *, study_id: int) -> dict[str, Resources]:
    """Read a study's classes by name; empty until the study or a trial asks for resources."""
    rows = txn.all(_CLASSES, study=study_id)
    return {row.name: read_resources("a class", row.request) for row in rows}


def queues(
    txn: Txn, *, study_id: int, after_position: QueuePosition, depth: int
) -> dict[str, ClassQueue]:
    """Read, without locks, each class and its first `depth` positions after `after_position`."""
    rows = txn.all(
        _QUEUES,
        study=study_id,
        after_priority=after_position.priority,
        after_number=after_position.number,
        depth=depth,
    )
    return {
        row.name: ClassQueue(
            read_resources("a class", row.request),
            sorted(map(_read_position, row.positions)) if row.is_open else None,
        )
        for row in rows
    }


def _read_position(text: str) -> QueuePosition:
    priority, _, number = text.partition(":")
    return QueuePosition(int(priority), int(number))


def add(txn: Txn, *, study_id: int, asked: Resources) -> str:
    """
    Return the name of a request's class; make the class if the study does not have it.

    The caller has locked the study's row, so that two callers cannot exceed the limit together.

    Raises:
        InvalidSpec: The study has 64 classes already.
    """
    known = read(txn, study_id=study_id)
    name = str(asked)
    if name not in known:
        if len(known) >= MOST:
            raise InvalidSpec(
                f"The study's trials ask for {MOST} different sets of resources already, and "
                f"{name!r} would be one more. Round the amounts, so that more trials ask for the "
                "same set."
            )
        for each, request in ((OF_STUDY, Resources()), (name, asked)):
            _insert(txn, study_id, each, request)
    return name


def set_of_study(txn: Txn, *, study_id: int, asked: Resources) -> None:
    """Store the resources that a study asks for; the caller has locked the study's row."""
    _insert(txn, study_id, OF_STUDY, asked)
    txn.run(_CHANGE, study=study_id, of_name=OF_STUDY, to_request=asked.to_json())


def _insert(txn: Txn, study_id: int, name: str, asked: Resources) -> None:
    txn.run(_INSERT, study_id=study_id, name=name, request=asked.to_json())


def move(txn: Txn, *, study_id: int, trial_ids: list[int], name: str) -> int:
    """Put locked trials into a class if they are PENDING or PAUSED; return how many were put."""
    return txn.count(_MOVE, study=study_id, ids=trial_ids, to_class=name)


def move_of_attempt(txn: Txn, *, lease: Lease, name: str) -> None:
    """
    Put a trial into a class from its next attempt on.

    Until the current attempt ends, it holds the resources of the class in which it started. The
    trial's row stores that class, with the attempt's number. The caller has checked the attempt's
    lease, or has ended the attempt.
    """
    row = txn.all(_ASKED_BY, trial=lease.trial_id)[0]
    held = {
        "attempt": lease.attempt,
        "class": _class_held(row.resource_class, row.resources, attempt=lease.attempt),
    }
    txn.run(
        _MOVE_OF_ATTEMPT,
        trial=lease.trial_id,
        of_attempt=lease.attempt,
        to_class=name,
        to_held=held,
    )


def _class_held(asked: str, stored: Mapping[str, Any] | None, *, attempt: int | None) -> str:
    """Return the class in which an attempt started; its trial may be in another class by now."""
    if stored is not None and stored.get("attempt") == attempt:
        return str(stored["class"])
    return asked


def of_trial(txn: Txn, *, trial_id: int) -> str:
    """Return the name of the class of a trial that exists."""
    return str(txn.all(_ASKED_BY, trial=trial_id)[0].resource_class)


def capacities(txn: Txn, *, study_id: int) -> list[Capacity]:
    """Read what the newest 1,000 live workers of a study offer."""
    return [Capacity.from_json(row.resources) for row in txn.all(_CAPACITIES, study=study_id)]


def studies(txn: Txn) -> list[int]:
    """Return the ids of at most 1,000 studies that have resource classes."""
    return [row.study_id for row in txn.all(_STUDIES)]


def loads(txn: Txn, *, study_id: int) -> dict[str, Load]:
    """
    Read what the live workers of a study offer and use, by the worker's UUID, newest first.

    At most 10,000 rows are read. A worker that runs no trial has one row. Any other worker has a
    row for each class of its trials, or more if trials have moved to another class.
    """
    classes = read(txn, study_id=study_id)
    found: dict[str, Load] = {}
    for row in txn.all(_LOADS, study=study_id):
        load = found.setdefault(
            row.uuid, Load(Capacity.from_json(row.resources), Resources(), row.reserved_for)
        )
        if row.n is None:
            continue
        held = classes.get(_class_held(row.resource_class, row.held, attempt=row.attempt))
        for _ in range(row.n):
            load.uses = load.uses.plus(held or Resources())
    return found


def fitting_elsewhere(txn: Txn, *, study_id: int, fits: Sequence[str]) -> list[str]:
    """
    Return the classes that are not in `fits`, but would fit a live worker if nothing ran on it.

    This includes classes that would fit the caller's own worker if it ran nothing.
    """
    offered = capacities(txn, study_id=study_id)
    return [
        name
        for name, asked in read(txn, study_id=study_id).items()
        if name not in fits and any(each.fits(asked) for each in offered)
    ]


def reserve(txn: Txn, *, study_id: int, worker_id: int, number: int) -> bool:
    """
    Record that a worker keeps its resources free for the trial `number`.

    The caller has locked the study's row, so that only one worker is reserved for the trial.

    Returns:
        False if another live worker is reserved for this trial; nothing is recorded then.
    """
    return txn.count(_RESERVE, study=study_id, worker=worker_id, number=number) > 0


def unreserve(txn: Txn, *, worker_id: int) -> None:
    """Record that a worker keeps its resources free for no trial."""
    txn.run(_UNRESERVE, worker=worker_id)
