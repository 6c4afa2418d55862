"""Record an event of an attempt, or a failure of a study's model."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Lease, Study
from studydb.operations.flushing import lost
from studydb.store import events, leases


def record_event(
    database: Database,
    *,
    lease: Lease,
    kind: EventKind,
    data: Mapping[str, Any],
    token: str | None = None,
) -> None:
    """
    Append an event of a held trial, and renew its lease.

    Args:
        token: A random text for this event only; a duplicate request stores nothing.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    with suppress(Duplicate), database.begin() as txn:
        events.append(
            txn,
            study_id=lease.study_id,
            lease=lease,
            kind=kind,
            actor=Actor.WORKER,
            data=data,
            token=token,
        )
        if leases.hold(txn, lease=lease) is None:
            raise lost(lease)
        leases.renew(txn, leases=[lease])


def record_model_failure(
    database: Database, study: Study, *, worker_id: int, error: str, token: str
) -> None:
    """Append an event that `status` shows as a problem; a duplicate request stores nothing."""
    with suppress(Duplicate), database.begin() as txn:
        events.append(
            txn,
            study_id=study.id,
            worker_id=worker_id,
            kind=EventKind.MODEL_FAILED,
            actor=Actor.WORKER,
            data={"error": error},
            token=token,
        )
