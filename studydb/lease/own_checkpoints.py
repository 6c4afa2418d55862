"""Checkpoints in an own loop: the user's process reads and writes the bytes."""

import os
import weakref
from pathlib import Path

from studydb.artifacts import INLINE, Stores, open_store
from studydb.artifacts.checkpoint_files import CheckpointLike, Restored, Saver, fetch, prepare
from studydb.artifacts.checkpoint_records import Restore, Saved, Upload
from studydb.artifacts.restore_cache import RestoreCache, cache_fault, open_cache
from studydb.db import Database
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.errors import CheckpointError, HostError
from studydb.domain.failures import MESSAGE_BYTES, bounded
from studydb.domain.records import Study
from studydb.domain.user_warnings import warn_user
from studydb.lease.checkpoint_rows import Checkpoints
from studydb.lease.held import HeldAttempt
from studydb.lease.retries import retry_until_answered
from studydb.settings import cache_size_bytes, load_keyring
from studydb.temporary import TemporaryDirectory, remove_abandoned


class OwnCheckpoints:
    """
    Restores and saves the checkpoints of one attempt.

    The user's keys and the study's stores are read when the first checkpoint is restored or saved,
    so that a loop without checkpoints needs no key file and does not read the stores.
    """

    def __init__(self, database: Database, study: Study, held: HeldAttempt) -> None:
        self._database, self._study, self._held = database, study, held
        self._rows: Checkpoints | None = None
        self._upload: Upload | None = None
        self._stores = Stores(INLINE)
        self._cache: RestoreCache | None = None
        self._copy: weakref.finalize[[TemporaryDirectory, int], OwnCheckpoints] | None = None

    def restore(self) -> Restored | None:
        """
        Fetch the newest usable checkpoint; mark each unusable checkpoint on the way as corrupt.

        Returns:
            None if the trial has no usable checkpoint and starts from scratch.

        Raises:
            HostError: This host cannot reach the store, or cannot write a copy.
            LeaseLost: The attempt no longer holds the trial.
            StorageTransient: The database did not answer in time.
            UsageError: The key file cannot be used.
        """
        checkpoint = self._held.claim.checkpoint
        if checkpoint is None:
            return None
        rows = self._opened()
        while (usable := rows.newest(self._held, checkpoint, self._stores)) is not None:
            found, what = usable
            try:
                return self._fetch(what)
            except CheckpointError as error:
                why = bounded(str(error), MESSAGE_BYTES)
                checkpoint = rows.mark_corrupt(self._held, found, why=why)
            except OSError as cause:
                number = self._held.lease.number
                raise HostError(
                    f"The checkpoint of trial {number} cannot be fetched on this host: {cause}"
                ) from cause
        return None

    def prepare(self, checkpoint: CheckpointLike) -> bytes | Path:
        """
        Pickle a dict, or check a directory; read the keys and stores.

        Raises:
            CheckpointError: The dict cannot be pickled, or the directory cannot be copied.
            StorageTransient: The database did not answer in time.
            UsageError: The checkpoint is neither a dict nor a path, or the key file cannot be used.
        """
        self._opened()
        return prepare(checkpoint)

    def begin(self, *, step: int) -> Upload | None:
        """
        Record and return the upload that begins; None if the store is in the database.

        If the directory of checkpoints was moved, the upload goes to the study's current store.

        Raises:
            CheckpointError: The study's folder in the store cannot or must not be made.
            LeaseLost: The attempt no longer holds the trial.
            StorageTransient: The database did not answer in time.
            UnknownStudy: The study was deleted.
            UsageError: The key file cannot be used.
        """
        self._stores = self._opened().stores_for_save(self._stores)
        upload = self._saver().begin(step=step)
        if upload is not None:
            self._held.begin_upload(upload.uuid, upload.url)
        self._upload = upload
        return upload

    def store(self, prepared: bytes | Path, *, step: int, upload: Upload | None) -> Saved:
        """
        Store the bytes of a prepared checkpoint.

        Args:
            upload: What `begin` returned.

        Raises:
            CheckpointError: The store fails or refuses the size; training can continue.
        """
        return self._saver().save(prepared, step=step, upload=upload)

    def record(self, saved: Saved) -> None:
        """
        Flush the results, then record a checkpoint; warn if the study's quota refuses it.

        For errors see `Checkpoints.record`, which deletes the bytes if they must not stay.
        """
        self._upload = None
        if refusal := self._opened().record(self._held, saved, self._stores):
            self._warn(refusal)

    def delete_upload(self) -> None:
        """
        If the lease is lost, delete the bytes of an upload that has failed or was interrupted.

        Another process may have deleted the upload's row before these bytes were written. In this
        case, no other process deletes the bytes. After `record` was called, this does nothing.
        """
        if self._held.is_lost and self._upload is not None:
            self._opened().delete_upload(self._held, self._upload, self._stores)

    def record_error(self, error: CheckpointError) -> None:
        """
        Record that a checkpoint could not be stored, and warn; at most once a minute.

        Raises:
            LeaseLost: The attempt no longer holds the trial.
            StorageTransient: The database did not answer in time.
        """
        text = bounded(str(error), MESSAGE_BYTES)
        if self._held.record_store_error(text):
            self._warn(text)

    def _warn(self, text: str) -> None:
        number = self._held.lease.number
        warn_user(f"A checkpoint of trial {number} could not be stored: {text}", RuntimeWarning)

    def remove_copy(self) -> None:
        """Remove the copy of a restored directory."""
        if self._copy is not None:
            self._copy()

    def _saver(self) -> Saver:
        return Saver(
            self._stores.current,
            study_uuid=self._study.uuid,
            trial_uuid=self._held.claim.uuid,
            attempt=self._held.lease.attempt,
            cache=self._cache,
        )

    def _opened(self) -> Checkpoints:
        if self._rows is None:
            rows = Checkpoints(
                self._database, self._study, load_keyring(), retry=retry_until_answered
            )
            self._stores = rows.stores()
            self._cache = open_cache(cache_size_bytes())
            self._warn_of_cache()
            self._rows = rows
        return self._rows

    def _warn_of_cache(self) -> None:
        """Warn if the store is remote and this host cannot keep copies of its checkpoints."""
        fault = cache_fault()
        if fault is not None and open_store(self._stores.current).is_remote:
            warn_user(fault, RuntimeWarning)

    def _fetch(self, what: Restore) -> Restored:
        if what.kind is CheckpointKind.DICT:
            return fetch(what, target=Path(), cache=self._cache)
        remove_abandoned()
        folder = TemporaryDirectory()
        copy = weakref.finalize(self, _remove, folder, os.getpid())
        try:
            restored = fetch(what, target=Path(folder.path) / "checkpoint", cache=self._cache)
        except BaseException:
            copy()
            raise
        self._copy = copy
        return restored


def _remove(folder: TemporaryDirectory, pid: int) -> None:
    if os.getpid() == pid:  # a fork inherits the finalizer, but its parent needs the directory
        folder.remove()
