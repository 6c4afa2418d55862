"""
Sign, write and verify the rows of checkpoints; delete the bytes of removed checkpoints.

The trial's process, its sender or the own loop writes the bytes to the store. The process that
holds the lease signs the row after a save, and verifies the signature before a restore.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from studydb.artifacts import (
    INLINE,
    Stores,
    is_signed,
    open_store,
    parts_of,
    sign_checkpoint,
    store_part,
)
from studydb.artifacts.checkpoint_records import Restore, Saved, Upload
from studydb.db import Database
from studydb.domain.checkpoint import AbandonedUpload, Checkpoint
from studydb.domain.errors import (
    CheckpointError,
    LeaseLost,
    NotAllowed,
    StorageTransient,
    UnknownStudy,
    UsageError,
)
from studydb.domain.records import Claim, Study
from studydb.lease.held import HeldAttempt
from studydb.lease.study_folders import make_study_folder
from studydb.lease.upload_collector import delete_bytes
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.refresh import refreshed
from studydb.operations.restore import restore
from studydb.settings import Keyring


class _Unverified(CheckpointError):
    """No key of this process verifies the checkpoint's signature."""


class Checkpoints:
    """
    Records and restores the checkpoints of one study.

    Args:
        retry: Repeats a call until the database answers.
    """

    def __init__(
        self,
        database: Database,
        study: Study,
        keyring: Keyring,
        *,
        retry: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._retry = retry
        self._database, self._study, self._keyring = database, study, keyring

    def refresh(self) -> Study:
        """
        Read again what a person may have changed: the study's stores, retention and trainable.

        Raises:
            StorageTransient: The database did not answer in time.
        """
        self._study = study = self._read_again()
        return study

    def _read_again(self) -> Study:
        study: Study = self._retry(lambda: refreshed(self._database, self._study))
        return study

    def stores(self) -> Stores:
        """
        Read the stores: an attempt saves to the current store, and can restore from all of them.

        Raises:
            StorageTransient: The database did not answer in time.
        """
        return self._database.locations.checkpoint_stores(self.refresh())

    def stores_for_save(self, stores: Stores) -> Stores:
        """
        Read the stores again if the current store lacks the study's folder, or cannot be read.

        A person may have moved the directory since `stores` were read, and named its new place.
        Unlike `stores`, this changes nothing that other attempts of this process use.

        Raises:
            StorageTransient: The database did not answer in time.
            UnknownStudy: The study was deleted.
        """
        with suppress(CheckpointError):
            current = stores.current
            if current == INLINE or open_store(current).has_study(self._study.uuid):
                return stores
        return self._database.locations.checkpoint_stores(self._read_again())

    def newest(
        self, held: HeldAttempt, checkpoint: Checkpoint | None, stores: Stores
    ) -> tuple[Checkpoint, Restore] | None:
        """
        Find the newest usable checkpoint; mark each unusable checkpoint on the way as corrupt.

        A checkpoint is usable here if its signature is valid and, for an inline checkpoint, its row
        has the bytes. Bytes in a store of files are not read. An unverified checkpoint of another
        trial is not marked; see `operations.checkpoints.mark_corrupt`.

        Args:
            checkpoint: The first checkpoint to try; None if the trial has none.

        Returns:
            The checkpoint and what a restore needs; None if no checkpoint is usable.

        Raises:
            LeaseLost: The attempt no longer holds its trial.
        """
        while checkpoint is not None:
            try:
                return checkpoint, self._restore(held.claim, checkpoint, stores)
            except CheckpointError as error:
                is_verified = not isinstance(error, _Unverified)
                checkpoint = self.mark_corrupt(
                    held, checkpoint, why=str(error), is_verified=is_verified
                )
        return None

    def mark_corrupt(
        self,
        held: HeldAttempt,
        checkpoint: Checkpoint,
        *,
        why: str = "",
        is_verified: bool = True,
    ) -> Checkpoint | None:
        """Mark a checkpoint as corrupt; return the checkpoint to restore instead, or None."""
        before: Checkpoint | None = self._retry(
            lambda: mark_corrupt(
                self._database,
                lease=held.lease,
                checkpoint=checkpoint,
                why=why,
                is_verified=is_verified,
            )
        )
        return before

    def _restore(self, claim: Claim, checkpoint: Checkpoint, stores: Stores) -> Restore:
        if not is_signed(self._keyring, checkpoint, trial_uuid=checkpoint.trial_uuid or claim.uuid):
            raise _Unverified("The checkpoint is not signed by a key of this user.")
        data = None
        if checkpoint.url == INLINE:
            data = self._retry(lambda: restore(self._database, checkpoint=checkpoint))
        elif (store := store_part(checkpoint.url)) in stores.own():
            self._make_folder(store)
        return Restore.of(checkpoint, data=data, stores=stores)

    def _make_folder(self, store: str) -> None:
        """
        Make the study's folder in a store, if this host may make it.

        Without the folder, a restore fails as if this host had not mounted the store. With the
        folder, bytes that the store lacks count as missing.
        """
        with suppress(CheckpointError):
            self._retry(lambda: make_study_folder(self._database, self._study, store))

    def record(self, held: HeldAttempt, saved: Saved, stores: Stores) -> str | None:
        """
        Sign and record a new checkpoint, and delete the checkpoints that it replaces.

        If it is certain that the row is not stored, the new bytes are deleted.

        Returns:
            Why the study's quota has refused the checkpoint, if this call has recorded an event
            about the refusal (at most one a minute); else None.

        Raises:
            LeaseLost: The attempt no longer holds its trial.
            NotAllowed: Another thread has ended the attempt.
            UsageError: There is no key to sign with, or a result cannot be stored.
            StorageTransient: The database did not answer in time.
        """
        try:
            signed = sign_checkpoint(
                self._keyring,
                saved,
                self._study.trainable,
                trial_uuid=held.claim.uuid,
                trial_id=held.lease.trial_id,
                attempt=held.lease.attempt,
            )
            replaced = held.save(signed, saved.data, self._study.keep)
        except (LeaseLost, NotAllowed, UsageError, CheckpointError) as error:
            _delete(saved.url, stores)
            if not isinstance(error, CheckpointError):
                raise
            return str(error) if held.record_store_error(str(error)) else None
        self._discard(held, replaced, stores)
        return None

    def delete_upload(self, held: HeldAttempt, upload: Upload, stores: Stores) -> None:
        """Delete the bytes of an upload whose attempt has lost its trial."""
        begun = AbandonedUpload(0, upload.uuid, held.claim.uuid, held.lease.attempt, upload.url)
        delete_bytes(self._study, begun, stores)

    def _discard(self, held: HeldAttempt, replaced: list[Checkpoint], stores: Stores) -> None:
        """
        Delete replaced checkpoints.

        The study's stores are read again: a person may have moved the files meanwhile. For the
        quota, checkpoints of other trials are replaced, too, which may be in a newer store.
        """
        with suppress(StorageTransient, UnknownStudy):
            if any(old.url != INLINE for old in replaced):
                stores = self._database.locations.checkpoint_stores(self._read_again())
            delete_removed(
                self._database, self._study, replaced, trial_uuid=held.claim.uuid, stores=stores
            )


def delete_removed(
    database: Database,
    study: Study,
    removed: Sequence[Checkpoint],
    *,
    trial_uuid: str,
    stores: Stores,
) -> list[Checkpoint]:
    """
    Delete the bytes of removed checkpoints, then their rows.

    Because of this order, a row still names the bytes that are left after a crash.

    Args:
        trial_uuid: The trial's UUID, for the checkpoints that were read without one.

    Returns:
        The checkpoints whose bytes could not be deleted, because their store fails.
    """
    left = [
        old
        for old in removed
        if _belongs_to_trial(old, study, old.trial_uuid or trial_uuid)
        and not _delete(old.url, stores)
    ]
    gone = [old for old in removed if old not in left]
    if gone:
        delete_rows(database, removed=gone)
    return left


def _belongs_to_trial(checkpoint: Checkpoint, study: Study, trial_uuid: str) -> bool:
    """Whether a row's URL names bytes of this trial; if not, only the row is deleted."""
    if checkpoint.url == INLINE:
        return True
    parts = parts_of(checkpoint.url)
    return parts is not None and parts[:2] == (study.uuid, trial_uuid)


def _delete(url: str, stores: Stores) -> bool:
    """Delete a checkpoint's bytes; return False if the store, or one that may hold them, fails."""
    if url == INLINE:
        return True
    try:
        open_store(stores.store_of(url)).delete(url)
    except (CheckpointError, OSError):
        return False
    return True
