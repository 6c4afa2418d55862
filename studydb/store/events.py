"""Who did what when: append-only."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import event

_COLUMNS = ("study_id", "trial_id", "attempt", "worker_id", "kind", "actor", "data", "token")

_APPEND = Prepared(
    sa.insert(event).values({name: sa.bindparam(name) for name in _COLUMNS} | {"at": now()})
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


def data_of(txn: Txn, *, token: str) -> dict[str, Any]:
    """What the event with this token recorded."""
    row = txn.first(_BY_TOKEN, by_token=token)
    return dict(row.data or {}) if row else {}
