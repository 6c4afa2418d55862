"""Rows of checkpoints: the supervisor verifies one before a restore, and signs one after a save."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from studydb.artifacts import INLINE, Stores, checkpoint_payload, is_signed, open_store, parts_of
from studydb.child.job import Restore
from studydb.child.messages import Saved
from studydb.db import Database
from studydb.domain.errors import CheckpointError, LeaseLost, StorageTransient
from studydb.domain.records import Checkpoint, CheckpointKind, Claim, Study
from studydb.lease.held import HeldAttempt
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.relocate import located
from studydb.operations.restore import restore
from studydb.settings import Keyring


class Checkpoints:
    """Records and restores the checkpoints of one study."""

    def __init__(
        self,
        database: Database,
        study: Study,
        keyring: Keyring,
        *,
        retry: Callable[[Callable[[], Any]], Any],
    ) -> None:
        """
        Serve the attempts of one worker.

        Args:
            retry: Repeats a call until the database answers, for the worker's `patience_s`.
        """
        self._retry = retry
        self._database, self._study, self._keyring = database, study, keyring

    def stores(self) -> Stores:
        """
        The stores of an attempt that starts now: where it saves, and where older objects are.

        Raises:
            StorageTransient: The database did not answer in time.
        """
        study: Study = self._retry(lambda: located(self._database, self._study))
        return self._database.locations.checkpoint_stores(study)

    def newest(
        self, held: HeldAttempt, checkpoint: Checkpoint | None, stores: Stores
    ) -> tuple[Checkpoint, Restore] | None:
        """
        The newest usable checkpoint, to start from; unusable ones are marked corrupt.

        Raises:
            LeaseLost: The attempt no longer holds its trial.
        """
        while checkpoint is not None:
            try:
                return checkpoint, self._restore(held.claim, checkpoint, stores)
            except CheckpointError as error:
                checkpoint = self.mark_corrupt(held, checkpoint, why=str(error))
        return None

    def mark_corrupt(
        self, held: HeldAttempt, checkpoint: Checkpoint, *, why: str = ""
    ) -> Checkpoint | None:
        """Mark a checkpoint as corrupt; returns the one before it, if there is one."""
        before: Checkpoint | None = self._retry(
            lambda: mark_corrupt(self._database, lease=held.lease, checkpoint=checkpoint, why=why)
        )
        return before

    def _restore(self, claim: Claim, checkpoint: Checkpoint, stores: Stores) -> Restore:
        if not is_signed(self._keyring, checkpoint, trial_uuid=claim.uuid):
            raise CheckpointError("It is not signed by a key of this user.")
        data = None
        if checkpoint.url == INLINE:
            data = self._retry(lambda: restore(self._database, checkpoint=checkpoint))
        return Restore(
            kind=CheckpointKind(checkpoint.kind),
            url=checkpoint.url,
            digest=checkpoint.digest,
            step=checkpoint.step,
            data=data,
            store=stores.store_of(checkpoint.url),
        )

    def record(self, held: HeldAttempt, saved: Saved, stores: Stores) -> None:
        """
        Sign and record what a child has stored, and delete the checkpoints that have expired.

        Raises:
            LeaseLost: The attempt no longer holds its trial; the bytes are deleted.
            StorageTransient: The database did not answer in time.
        """
        lease = held.lease
        payload = checkpoint_payload(
            kind=saved.kind,
            trial_uuid=held.claim.uuid,
            attempt=lease.attempt,
            step=saved.step,
            digest=saved.digest,
        )
        signers = self._study.trainable.signatures if self._study.trainable else ()
        key_id, mac = self._keyring.sign(payload, prefer=signers)
        checkpoint = Checkpoint(
            uuid=saved.uuid,
            trial_id=lease.trial_id,
            attempt=lease.attempt,
            step=saved.step,
            kind=saved.kind,
            url=saved.url,
            digest=saved.digest,
            size_bytes=saved.size_bytes,
            key_id=key_id,
            mac=mac,
        )
        try:
            expired = held.save(checkpoint, saved.data)
        except LeaseLost:
            _delete(checkpoint, stores)
            raise
        self._discard(held, expired, stores)

    def _discard(self, held: HeldAttempt, expired: list[Checkpoint], stores: Stores) -> None:
        """Delete bytes, then rows: after a crash between the two, the row still names the bytes."""
        gone = [one for one in expired if not self._is_its_own(held, one) or _delete(one, stores)]
        if gone:
            with suppress(StorageTransient):
                delete_rows(self._database, removed=gone)

    def _is_its_own(self, held: HeldAttempt, checkpoint: Checkpoint) -> bool:
        """Whether a row names an object of this trial; the bytes of any other are not deleted."""
        if checkpoint.url == INLINE:
            return True
        parts = parts_of(checkpoint.url)
        return parts is not None and parts[:2] == (self._study.uuid, held.claim.uuid)


def _delete(checkpoint: Checkpoint, stores: Stores) -> bool:
    """Delete an object's bytes; False when the store fails."""
    if checkpoint.url == INLINE:
        return True
    try:
        open_store(stores.store_of(checkpoint.url)).delete(checkpoint.url)
    except CheckpointError:
        return False
    return True
