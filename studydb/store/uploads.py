"""
Uploads: checkpoints that have no row in `checkpoint`, although their bytes may exist in a store.

An upload's row is inserted before the first byte is written, and deleted by the transaction that
inserts the checkpoint's row. So every object of a crashed attempt can be found by a row. If a
person uploads a checkpoint for a trial that is yet to be enqueued, the upload's row has the
`trial_id` 0 and the `attempt` 0.
"""

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import after, now
from studydb.db.schema import attempt, by_id, checkpoint, trial, upload
from studydb.domain.checkpoint import AbandonedUpload
from studydb.domain.records import Lease
from studydb.store.leases import FENCE, fence_binds

PATIENCE_S = 86_400.0
"""
A person's upload has no lease. For this many seconds after its beginning, a trial can be enqueued
with the upload.
"""

COMMIT_S = 3_600.0
"""
How many seconds the bytes of a person's upload are kept after `PATIENCE_S`. An `enqueue` that has
taken the upload in time may commit later. Until that COMMIT, the process that looks for abandoned
uploads does not see that a checkpoint needs the bytes.
"""

MOST = 100
"""The most uploads that one call of `abandoned` finds."""

_GIVEN = ("uuid", "study_id", "trial_id", "attempt", "url", "started_at")

_INSERT = Prepared(
    sa.insert(upload)
    .from_select(
        _GIVEN,
        sa.select(
            sa.bindparam("uuid", type_=sa.Text),
            trial.c.study_id,
            trial.c.id,
            trial.c.attempt,
            sa.bindparam("url", type_=sa.Text),
            now(),
        ).where(*FENCE),
        include_defaults=False,
    )
    .returning(upload.c.id)
)

_INSERT_OF_PERSON = Prepared(
    sa.insert(upload).values(
        {name: sa.bindparam(name) for name in ("uuid", "study_id", "url")}
        | {"trial_id": 0, "attempt": 0, "started_at": now()}
    )
)

_END = Prepared(
    sa.delete(upload).where(upload.c.uuid == sa.bindparam("uuid")).returning(upload.c.id)
)

_END_OF_PERSON = Prepared(
    sa.delete(upload)
    .where(
        upload.c.uuid == sa.bindparam("uuid"),
        after(upload.c.started_at, sa.literal(PATIENCE_S, sa.Double)) > now(),
    )
    .returning(upload.c.id)
)

_is_of_ended_attempt = after(attempt.c.ended_at, sa.bindparam("settled_s", type_=sa.Float)) <= now()
_is_unused_of_person = sa.and_(
    upload.c.trial_id == 0,
    after(upload.c.started_at, sa.literal(PATIENCE_S + COMMIT_S, sa.Double)) <= now(),
    ~sa.exists().where(checkpoint.c.uuid == upload.c.uuid),
)
_ABANDONED = Prepared(
    sa.select(
        *(
            upload.c.id,
            upload.c.uuid,
            upload.c.attempt,
            upload.c.url,
            trial.c.uuid.label("trial_uuid"),
        ),
        sa.exists().where(checkpoint.c.uuid == upload.c.uuid).label("is_stored"),
    )
    .outerjoin_from(upload, trial, trial.c.id == upload.c.trial_id)
    .outerjoin(
        attempt,
        sa.and_(attempt.c.trial_id == upload.c.trial_id, attempt.c.attempt == upload.c.attempt),
    )
    .where(
        upload.c.study_id == sa.bindparam("study"),
        upload.c.id > sa.bindparam("after"),
        sa.or_(_is_of_ended_attempt, _is_unused_of_person),
    )
    .order_by(by_id(upload))
    .limit(MOST)
)

_DELETE = Prepared(sa.delete(upload).where(upload.c.id == sa.bindparam("upload")))


def insert(txn: Txn, *, lease: Lease, uuid: str, url: str) -> bool:
    """
    Insert the row of an upload that is about to begin.

    Returns:
        False if the attempt no longer holds its trial.

    Raises:
        Duplicate: An earlier send of the same request has inserted the row.
    """
    return txn.count(_INSERT, uuid=uuid, url=url, **fence_binds(lease)) == 1


def insert_of_person(txn: Txn, *, study_id: int, uuid: str, url: str) -> None:
    """
    Insert the row of an upload for a trial that is yet to be enqueued.

    Raises:
        Duplicate: An earlier send of the same request has inserted the row.
    """
    txn.run(_INSERT_OF_PERSON, study_id=study_id, uuid=uuid, url=url)


def end(txn: Txn, *, uuid: str) -> None:
    """
    Delete an upload's row, if there is one.

    The caller inserts the checkpoint's row in this transaction, or has deleted the bytes.
    """
    txn.run(_END, uuid=uuid)


def end_of_person(txn: Txn, *, uuid: str) -> bool:
    """
    Delete the row of a person's upload; the same transaction inserts the checkpoint's row.

    Returns:
        False if the upload's row was deleted before, or the upload began more than a day ago. The
        bytes of such an upload have been deleted, or will be deleted soon.
    """
    return txn.count(_END_OF_PERSON, uuid=uuid) == 1


def abandoned(
    txn: Txn, *, study_id: int, after_id: int = 0, settled_s: float = 0.0
) -> list[AbandonedUpload]:
    """
    Find uploads that no process will finish, 100 at most.

    Args:
        after_id: Only uploads with higher ids are found.
        settled_s: How long ago the attempt of an upload must have ended. A person's upload is found
            25 hours after its beginning, unless a checkpoint has its UUID.
    """
    rows = txn.all(_ABANDONED, study=study_id, after=after_id, settled_s=settled_s)
    return [
        AbandonedUpload(row.id, row.uuid, row.trial_uuid, row.attempt, row.url, bool(row.is_stored))
        for row in rows
    ]


def delete(txn: Txn, *, upload_id: int) -> None:
    """
    Delete the row of an abandoned upload.

    The caller has deleted the bytes, except in two cases: a checkpoint's row names them, or the URL
    in the upload's row was changed, so that it names another object.
    """
    txn.run(_DELETE, upload=upload_id)
