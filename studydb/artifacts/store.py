"""
The protocol of checkpoint stores, the paths of their objects, and digests.

An object is what a store keeps of one checkpoint.
"""

import hashlib
import re
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from studydb.domain.errors import CheckpointError

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OBJECT = re.compile(rf"{_UUID}/{_UUID}/\d+/\d+-{_UUID}")
_DEPTH = 4


def check_uuid(text: str, *, noun: str) -> str:
    """
    Return a text that is a UUID, and therefore safe as a part of a path.

    Raises:
        CheckpointError: The text is not a UUID; the row that it comes from was changed.
    """
    if not re.fullmatch(_UUID, text):
        raise CheckpointError(
            f"{text!r} is not a {noun}'s UUID: a program other than studydb changed its row."
        )
    return text


def parts_of(url: str) -> tuple[str, ...] | None:
    """Return study, trial, attempt and name from an object's URL; None for another URL."""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # urlsplit refuses the URL, for example because its host has a bracket
        return None
    parts = tuple(path.split("/")[-_DEPTH:])
    return parts if _OBJECT.fullmatch("/".join(parts)) else None


def known_parts_of(url: str, *, store: object) -> tuple[str, ...]:
    """
    Return what `parts_of` returns, but raise an error instead of returning None.

    Raises:
        CheckpointError: The URL in a checkpoint's row is not the URL of an object.
    """
    parts = parts_of(url)
    if parts is None:
        raise CheckpointError(
            f"{url!r} names no checkpoint of {store}: the checkpoint's row was changed."
        )
    return parts


class Place(Struct, frozen=True):
    """
    Where a checkpoint's bytes are stored.

    Each attempt has a directory, so that an old attempt cannot touch the files of a new attempt.
    """

    study_uuid: str
    trial_uuid: str
    attempt: int
    step: int
    checkpoint_uuid: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """
        The object's path below the root of a store.

        Raises:
            CheckpointError: One of the UUIDs is not valid.
        """
        name = f"{self.step}-{check_uuid(self.checkpoint_uuid, noun='checkpoint')}"
        study = check_uuid(self.study_uuid, noun="study")
        return study, check_uuid(self.trial_uuid, noun="trial"), str(self.attempt), name


class Stored(Struct, frozen=True):
    """
    A stored object.

    Attributes:
        digest: The SHA-256 of the bytes, or of the names and digests of a directory's files (see
            `tree.digest_of_files`), in hexadecimal.
    """

    url: str
    digest: str
    size_bytes: int


class Store(Protocol):
    """
    Keeps checkpoints: an object is either whole or missing, and its bytes never change.

    All methods can raise CheckpointError. If this host cannot reach the store or cannot write the
    target, methods that read raise OSError instead.

    Attributes:
        is_remote: Whether each read goes over a network, so that a cache on this host saves time.
    """

    is_remote: bool

    @property
    def url(self) -> str:
        """The URL that opens this store again."""

    def connect(self) -> None:
        """Import the store's library and make its client; SFTP's client connects to the host."""

    def has_study(self, study_uuid: str) -> bool:
        """Whether objects of a study can be written; False if `add_study` must be called first."""

    def check_study(self, study_uuid: str) -> None:
        """Raise CheckpointError if `has_study` is False; the message says what helps."""

    def add_study(self, study_uuid: str) -> None:
        """Prepare the store for objects of a study; do nothing if it is prepared."""

    def put_bytes(self, place: Place, data: bytes) -> Stored:
        """Store bytes; they survive a crash of the host once the call returns."""

    def put_directory(self, place: Place, source: Path) -> Stored:
        """Store a copy of a directory; it survives a crash of the host once the call returns."""

    def get_bytes(self, url: str, *, digest: str) -> bytes:
        """Read bytes, and raise CheckpointError if their digest differs."""

    def get_directory(self, url: str, *, digest: str, target: Path) -> Path:
        """Copy a directory to `target`, which must not exist, and check its digest."""

    def exists(self, url: str) -> bool:
        """Whether the object exists; raise an error if this host cannot tell."""

    def delete(self, url: str) -> None:
        """Remove an object if it exists."""

    def delete_unfinished(self, url: str) -> None:
        """Remove an object, and what an unfinished upload has stored of it."""

    def delete_study(self, study_uuid: str) -> None:
        """Remove all objects of a study, but not what `add_study` has prepared."""

    def remove_folder(self, study_uuid: str) -> None:
        """Undo `add_study` as far as possible, once the study has no objects."""


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_digest(checkpoint: object, found: str, recorded: str) -> None:
    """
    Compare the digest of bytes that were read with the digest in the checkpoint's row.

    Raises:
        CheckpointError: The bytes have changed since they were stored.
    """
    if found != recorded:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is damaged: its SHA-256 is {found[:12]}…, and "
            f"{recorded[:12]}… was recorded."
        )
