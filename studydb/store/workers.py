"""Workers: one row, with a new uuid, for each start of a worker process or an own loop."""

from typing import Any

import sqlalchemy as sa
from msgspec import structs

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import worker
from studydb.domain.records import Process, Worker
from studydb.domain.resources import Capacity

PROCESS_FIELDS = Process.__struct_fields__
_GIVEN = ("uuid", "study_id", *PROCESS_FIELDS, "slots", "lease_s", "version", "resources")

_INSERT = Prepared(
    sa.insert(worker)
    .values(
        {name: sa.bindparam(name, type_=worker.c[name].type) for name in _GIVEN}
        | {"started_at": now(), "seen_at": now()}
    )
    .returning(worker.c.id)
)
_BY_UUID = Prepared(sa.select(worker.c.id).where(worker.c.uuid == sa.bindparam("by_uuid")))
_MARK_ALIVE = Prepared(
    sa.update(worker)
    .where(worker.c.id == sa.bindparam("worker"))
    .values(seen_at=now())
    .returning(worker.c.request)
)
_END = Prepared(
    sa.update(worker)
    .where(worker.c.id == sa.bindparam("worker"), worker.c.ended_at.is_(None))
    .values(ended_at=now(), seen_at=now())
)
_SET_REQUEST = Prepared(
    sa.update(worker)
    .where(worker.c.id == sa.bindparam("worker"), worker.c.ended_at.is_(None))
    .values(request=sa.bindparam("to_request"))
    .returning(worker.c.id)
)
REQUEST = (
    sa.select(worker.c.request)
    .where(worker.c.id == sa.bindparam("worker", type_=worker.c.id.type))
    .scalar_subquery()
)
"""What a person requests of a worker; NULL if there is no request or no such worker."""

_WITH_UUID_PREFIX = Prepared(
    sa.select(worker)
    .where(worker.c.uuid.startswith(sa.bindparam("prefix")))
    .order_by(worker.c.id.desc())
    .limit(sa.bindparam("limit"))
)


def insert(
    txn: Txn,
    *,
    uuid: str,
    study_id: int,
    process: Process,
    slots: int,
    lease_s: float,
    version: str,
    capacity: Capacity | None = None,
) -> int:
    """
    Insert the row of a worker, that is, of a process that will hold leases.

    Args:
        capacity: The resources that the worker offers to trials; None if every trial fits.

    Raises:
        Duplicate: An earlier send of the same request has inserted the row.
    """
    row = txn.all(
        _INSERT,
        uuid=uuid,
        study_id=study_id,
        slots=slots,
        lease_s=lease_s,
        version=version,
        resources=None if capacity is None else capacity.to_json(),
        **structs.asdict(process),
    )[0]
    return int(row.id)


def id_of(txn: Txn, *, uuid: str) -> int:
    """Find the id of the worker with this uuid."""
    return int(txn.all(_BY_UUID, by_uuid=uuid)[0].id)


def mark_alive(txn: Txn, *, worker_id: int) -> str | None:
    """
    Record that a worker is alive now, and read what a person requests of the worker.

    Returns:
        The request; None if there is none, or if the worker's row was deleted.
    """
    row = txn.first(_MARK_ALIVE, worker=worker_id)
    return None if row is None else row.request


def end(txn: Txn, *, worker_id: int) -> None:
    """Record the orderly end of a worker; a worker that is killed leaves `ended_at` NULL."""
    txn.run(_END, worker=worker_id)


def set_request(txn: Txn, *, worker_id: int, request: str) -> bool:
    """
    Store what a person requests of a worker; the worker reads this at its next renewal or look.

    Returns:
        False if the worker has ended or its row was deleted; then nothing is stored.
    """
    return txn.count(_SET_REQUEST, worker=worker_id, to_request=request) > 0


def with_uuid_prefix(txn: Txn, *, prefix: str, limit: int) -> list[Worker]:
    """
    Find the workers whose uuid begins with `prefix`, newest first.

    Args:
        prefix: A text without % and _, the wildcards of LIKE.
    """
    return [_read(row) for row in txn.all(_WITH_UUID_PREFIX, prefix=prefix, limit=limit)]


def process_of(row: Any) -> Process:
    """Make a `Process` from the columns of a row."""
    return Process(*(getattr(row, name) for name in PROCESS_FIELDS))


def _read(row: Any) -> Worker:
    own = {name: getattr(row, name) for name in Worker.__struct_fields__ if name != "process"}
    return Worker(process=process_of(row), **own)
