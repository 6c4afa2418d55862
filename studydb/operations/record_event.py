"""Record an event of an attempt, or a failure of a study's model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from studydb.db import Database
from studydb.db.faults import Duplicate, is_of_missing_row
from studydb.domain.errors import StudydbError, UnknownStudy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Lease, Study
from studydb.operations.flushing import lost
from studydb.store import events, leases
from studydb.store.studies import DELETED


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
        LeaseLost: The attempt no longer holds its trial, or the study was deleted.
    """
    with raising_if_deleted(lost(lease)), suppress(Duplicate), database.begin() as txn:
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
    """
    Record that a study's model has failed, which `status` shows.

    Args:
        token: A random text for this event only; a duplicate request stores nothing.

    Raises:
        UnknownStudy: The study was deleted.
    """
    gone = UnknownStudy(DELETED)
    with raising_if_deleted(gone), suppress(Duplicate), database.begin() as txn:
        events.append(
            txn,
            study_id=study.id,
            worker_id=worker_id,
            kind=EventKind.MODEL_FAILED,
            actor=Actor.WORKER,
            data={"error": error},
            token=token,
        )


@contextmanager
def raising_if_deleted(error: StudydbError) -> Iterator[None]:
    """Raise `error` if a FOREIGN KEY refuses the event, because the study was deleted."""
    try:
        yield
    except Exception as refusal:
        if is_of_missing_row(refusal):
            raise error from refusal
        raise
