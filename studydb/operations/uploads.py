"""Record that uploads begin; find abandoned uploads; delete the rows of uploads."""

from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.checkpoint import AbandonedUpload
from studydb.domain.records import Lease, Study
from studydb.operations.flushing import lost
from studydb.operations.start_checkpoints import lock_studies
from studydb.store import uploads


def begin_upload(database: Database, *, lease: Lease, uuid: str, url: str) -> None:
    """
    Record that the bytes of a checkpoint will be written; call this before the first byte.

    The trial's row is not locked. If the attempt ends at the same time, the upload's row names an
    attempt that has ended, and `abandoned_uploads` finds the row.

    Args:
        uuid: The UUID that `save` will store in the checkpoint's row.
        url: The URL that the object will have.

    Raises:
        LeaseLost: The attempt no longer holds its trial; nothing may be written.
    """
    with suppress(Duplicate), database.begin() as txn:
        if not uploads.insert(txn, lease=lease, uuid=uuid, url=url):
            raise lost(lease)


def begin_upload_of_person(database: Database, study: Study, *, uuid: str, url: str) -> None:
    """
    Record that a person's checkpoint will be written; `enqueue` deletes this record.

    Once the deletion of a study has begun, no upload may begin. The deletion deletes the bytes
    first, and then the rows that name them, so no process would delete the bytes of a later upload.

    Raises:
        NotAllowed: The study is being deleted; nothing may be written.
        UnknownStudy: The study was deleted.
    """
    with suppress(Duplicate), database.begin() as txn:
        lock_studies(txn, study)
        uploads.insert_of_person(txn, study_id=study.id, uuid=uuid, url=url)


def end_upload(database: Database, *, uuid: str) -> None:
    """Delete the row of a person's upload; call this after its bytes have been deleted."""
    with database.begin() as txn:
        uploads.end(txn, uuid=uuid)


def abandoned_uploads(
    database: Database, study: Study, *, after_id: int = 0, settled_s: float = 0.0
) -> list[AbandonedUpload]:
    """
    Find uploads whose attempts have ended, and uploads that a person has abandoned.

    An ended attempt never records a checkpoint. An upload of a person counts as abandoned after 25
    hours, if no trial was enqueued with it. Only during the first 24 hours can a trial be enqueued
    with it.

    A process that has lost its trial without noticing may still write. When its worker notices, the
    worker deletes what the process has written.

    Args:
        after_id: The id of the upload after which the search begins; a call finds at most 100.
        settled_s: How long ago the attempts must have ended. The process of a trial may live for a
            moment after its worker, and write.
    """
    with database.begin(write=False, single=True) as txn:
        return uploads.abandoned(txn, study_id=study.id, after_id=after_id, settled_s=settled_s)


def delete_upload(database: Database, *, upload_id: int) -> None:
    """Delete the row of an upload; call this after its bytes have been deleted."""
    with database.begin() as txn:
        uploads.delete(txn, upload_id=upload_id)
