"""The records of checkpoints, and of uploads that no process will finish."""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class CheckpointKind(StrEnum):
    """What the user's code has saved: a dict or a directory."""

    DICT = "dict"
    """Stored as a pickle, which a worker loads only in its child processes."""
    DIRECTORY = "directory"


class Checkpoint(Struct, frozen=True):
    """
    A saved state of a trial: where its bytes are, and their digest and signature.

    Attributes:
        uuid: The name of the bytes in the store.
        step: The last step that the bytes contain.
        kind: A `CheckpointKind`, or any other text in a damaged row, which has no valid signature.
        url: Where the bytes are; "inline:" if they are in the row's column `data`.
        digest: The SHA-256 of the bytes or of the directory's manifest, in hexadecimal.
        key_id, mac: The signature by the worker, or by the process of the person who uploaded the
            checkpoint. A checkpoint without a signature is not restored.
        id: The id of the row; None before the checkpoint is saved.
        trial_uuid: The UUID of the trial that saved the checkpoint; the signature covers this UUID.
            None if the row was read without the UUID.
    """

    uuid: str
    trial_id: int
    attempt: int
    step: int
    kind: str
    url: str
    digest: str
    size_bytes: int
    key_id: str | None = None
    mac: str | None = None
    id: int | None = None
    trial_uuid: str | None = None


class KeptCheckpoint(NamedTuple):
    """
    A checkpoint with the value of the study's metric at its step.

    Attributes:
        value: None if no result was reported at that step.
    """

    row: Checkpoint
    value: float | None


class AbandonedUpload(Struct, frozen=True):
    """
    An upload that no process will finish.

    Its row can be deleted. Its bytes can be deleted, too, if `is_stored` is False.

    Attributes:
        id: The id of the upload's row.
        uuid: The UUID that the checkpoint would have.
        trial_uuid: None if a person has uploaded the bytes for a trial that was never enqueued.
        url: Where the bytes are, if they exist.
        is_stored: Whether a checkpoint's row names the bytes, so that they must stay. This happens
            if a duplicate request to record the upload arrives after the checkpoint was saved.
    """

    id: int
    uuid: str
    trial_uuid: str | None
    attempt: int
    url: str
    is_stored: bool = False
