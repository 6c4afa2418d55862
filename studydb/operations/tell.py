"""Record that something happened to an attempt."""

from collections.abc import Mapping
from typing import Any

from studydb.db import Database
from studydb.domain.records import Lease
from studydb.operations.flushing import lost
from studydb.store import events, leases


def tell(database: Database, *, lease: Lease, kind: str, data: Mapping[str, Any]) -> None:
    """
    Append an event of a held trial.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    with database.begin() as txn:
        if leases.hold(txn, lease=lease) is None:
            raise lost(lease)
        events.append(
            txn,
            study_id=lease.study_id,
            trial_id=lease.trial_id,
            attempt=lease.attempt,
            kind=kind,
            actor="worker",
            data=data,
        )
