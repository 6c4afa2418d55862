"""Delete the bytes and the rows of abandoned uploads; see `operations.uploads`."""

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

from studydb.artifacts import Stores, open_store, parts_of, store_part
from studydb.db import Database
from studydb.domain.checkpoint import AbandonedUpload
from studydb.domain.errors import CheckpointError
from studydb.domain.records import Study
from studydb.lease.study_folders import moved_directories
from studydb.operations.refresh import refreshed
from studydb.operations.uploads import abandoned_uploads, delete_upload

PAUSE_S = 60.0
"""The time between two searches of one process for abandoned uploads."""

SETTLED_S = 10.0
"""
How long after the end of an attempt its uploads are deleted. When a worker is killed, its trial can
be recovered before the worker's fork server has killed the process that writes the upload.
"""


class UploadCollector:
    """
    Looks for abandoned uploads once a minute, and deletes them in a thread.

    Any number of processes may collect at the same time. If a process has deleted the bytes of an
    upload, and dies before it deletes the upload's row, another process deletes the row.
    """

    def __init__(self, database: Database, study: Study) -> None:
        self._database, self.study = database, study
        self._next_s = 0.0
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """
        Look for abandoned uploads, and start a thread that deletes them.

        Nothing happens within a minute of the last search, or while an earlier thread still runs.
        """
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PAUSE_S
        found = abandoned_uploads(self._database, self.study, settled_s=SETTLED_S)
        if found:
            self._thread = threading.Thread(
                target=self._collect, args=(found,), name="studydb-uploads", daemon=True
            )
            self._thread.start()

    def _collect(self, found: Sequence[AbandonedUpload]) -> None:
        with suppress(Exception):  # the rows are left, and a later search finds them again
            collect_uploads(self._database, self.study, found, settled_s=SETTLED_S)


def collect_uploads(
    database: Database,
    study: Study,
    found: Sequence[AbandonedUpload] | None = None,
    *,
    settled_s: float = 0.0,
) -> int:
    """
    Delete the bytes, then the row, of each abandoned upload of a study.

    Args:
        found: The first uploads, if the caller has read them.
        settled_s: How long ago the attempts must have ended; 0 is safe if all of their processes
            have ended.

    Returns:
        How many uploads are left, because their store fails.

    Raises:
        StorageTransient: The database did not answer; the next call deletes the remaining uploads.
    """
    read = partial(abandoned_uploads, database, study, settled_s=settled_s)
    uploads = read() if found is None else found
    n_left = 0
    while uploads:
        n_left += delete_uploads(database, study, uploads)
        uploads = read(after_id=uploads[-1].id)
    return n_left


def delete_uploads(database: Database, study: Study, uploads: Sequence[AbandonedUpload]) -> int:
    """
    Delete the bytes, then the row, of each of these uploads; call again for uploads that are left.

    Returns:
        How many uploads are left, because their store fails.

    Raises:
        StorageTransient: The database did not answer; the next call deletes the remaining uploads.
    """
    stores = database.locations.checkpoint_stores(refreshed(database, study))
    moved = moved_directories(database, study, stores) if uploads else set()
    n_left = 0
    for one in uploads:
        if delete_bytes(study, one, stores, moved):
            delete_upload(database, upload_id=one.id)
        else:
            n_left += 1
    return n_left


def delete_bytes(
    study: Study, upload: AbandonedUpload, stores: Stores, moved: Collection[str] = ()
) -> bool:
    """
    Delete the bytes of an upload; return whether the upload's row may be deleted, too.

    Nothing is deleted, and True is returned, if a checkpoint's row names the bytes, or if the URL
    was changed and does not name the upload's own object. The bytes are deleted in the store that
    the URL names and in each other directory that has the study's folder, because a directory with
    unfinished files may have been moved. If there is no such store, nothing is deleted.

    Args:
        moved: Directories that were moved (`moved_directories`), so that they hold no bytes.
    """
    if upload.is_stored or not _belongs_to_attempt(upload, study):
        return True
    try:
        named = store_part(upload.url)
        found = [
            store
            for store in map(open_store, stores.own())
            if (store.url.rstrip("/") == named and store.url not in moved)
            or (not store.is_remote and store.has_study(study.uuid))
        ]
        for store in found:
            store.delete_unfinished(upload.url)
    except CheckpointError:
        return False
    return bool(found)


def _belongs_to_attempt(upload: AbandonedUpload, study: Study) -> bool:
    parts = parts_of(upload.url)
    return (
        parts is not None
        and parts[:3] == (study.uuid, upload.trial_uuid or parts[1], str(upload.attempt))
        and parts[3].endswith(f"-{upload.uuid}")
    )
