"""What every store of checkpoints can do, and how its objects are named."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from studydb.domain.errors import CheckpointError

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OBJECT = re.compile(rf"{_UUID}/{_UUID}/\d+/\d+-{_UUID}")
_DEPTH = 4


def check_uuid(text: str, *, of: str) -> str:
    """
    Return a UUID that becomes part of a path, if it is one: rows are written by others, too.

    Raises:
        CheckpointError: It is none.
    """
    if not re.fullmatch(_UUID, text):
        raise CheckpointError(
            f"{text!r} is no UUID of a {of}: its row was changed by something else than studydb."
        )
    return text


def parts_of(url: str) -> tuple[str, ...] | None:
    """The last parts of an object's URL: study, trial, attempt, name; None if it names none."""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # a bracket where a host would be
        return None
    parts = tuple(path.split("/")[-_DEPTH:])
    return parts if _OBJECT.fullmatch("/".join(parts)) else None


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where a checkpoint's bytes belong.

    A directory per attempt: an orphan that still writes cannot reach into its successor's.
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
            CheckpointError: One of the UUIDs is none.
        """
        name = f"{self.step}-{check_uuid(self.checkpoint_uuid, of='checkpoint')}"
        study = check_uuid(self.study_uuid, of="study")
        return study, check_uuid(self.trial_uuid, of="trial"), str(self.attempt), name


@dataclass(frozen=True, slots=True)
class Stored:
    """
    An object that is safe on disk.

    Attributes:
        digest: SHA-256 in hexadecimal: of the bytes, or of a directory's manifest.
    """

    url: str
    digest: str
    size_bytes: int


class Store(Protocol):
    """
    Keeps checkpoints: an object is either whole or not there, and is never written twice.

    What goes wrong is a CheckpointError that tells the cause. Only reading raises OSError too,
    where it says nothing about the object: the store cannot be reached from this host, or the
    target cannot be written.
    """

    @property
    def url(self) -> str:
        """The URL that opens this store again."""

    def put_bytes(self, place: Place, data: bytes) -> Stored:
        """Store bytes; they survive a crash of the host once this returns."""

    def put_directory(self, place: Place, source: Path) -> Stored:
        """Store a copy of a directory; it survives a crash of the host once this returns."""

    def get_bytes(self, url: str, *, digest: str) -> bytes:
        """Read bytes; nothing that differs from the digest is handed out."""

    def get_directory(self, url: str, *, digest: str, target: Path) -> Path:
        """Copy a stored directory to `target`, which must not exist; checked as it is copied."""

    def exists(self, url: str) -> bool:
        """Whether the object is there."""

    def delete(self, url: str) -> None:
        """Remove an object; one that is gone already is no error."""

    def delete_study(self, study_uuid: str) -> None:
        """Remove all objects of a study."""


def digest_of(data: bytes) -> str:
    """The digest of a checkpoint's bytes."""
    return hashlib.sha256(data).hexdigest()
