"""A child's checkpoints: fetch the bytes to start from, and store the bytes of new checkpoints."""

import pickle
import uuid
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import cloudpickle

from studydb.artifacts import (
    INLINE,
    Place,
    check_inline_size,
    digest_of,
    open_store,
    pack_directory,
    scan,
    unpack_directory,
)
from studydb.child.job import Job, Restore
from studydb.child.messages import Saved
from studydb.domain.errors import CheckpointError, UsageError
from studydb.domain.records import CheckpointKind


class Restored:
    """
    The checkpoint that an attempt starts from: `trial.checkpoint`.

    Attributes:
        step: The last step that the checkpoint contains.
    """

    def __init__(self, step: int, *, data: bytes | None = None, path: Path | None = None) -> None:
        self.step = step
        self._data = data
        self._path = path

    def to_dict(self) -> dict[Any, Any]:
        """Return a new copy of the dict that was saved."""
        if self._data is None:
            raise CheckpointError("The checkpoint is a directory; use its .path.")
        return dict(pickle.loads(self._data))  # noqa: S301  signed, see artifacts/signing.py

    @property
    def path(self) -> Path:
        """A copy of the saved directory; you may change it. It is removed after the attempt."""
        if self._path is None:
            raise CheckpointError("The checkpoint is a dict; use its .to_dict().")
        return self._path

    @property
    def data(self) -> bytes | None:
        """The pickle of a dict; None for a directory."""
        return self._data

    def __repr__(self) -> str:
        return f"<checkpoint of step {self.step}: {'dict' if self._path is None else self._path}>"


def fetch(job: Job) -> Restored | None:
    """Fetch the checkpoint that a job starts from, if any; errors are those of `fetch_from`."""
    if job.restore is None:
        return None
    store = job.restore.store or job.store
    return fetch_from(store, job.restore, target=Path(job.scratch) / "checkpoint")


def fetch_from(store_url: str, restore: Restore, *, target: Path) -> Restored:
    """
    Fetch a checkpoint and check its digest; the caller has verified its signature.

    Args:
        target: The path for the copy of a directory; it must not exist.

    Raises:
        CheckpointError: The bytes are missing or corrupt.
        OSError: This host cannot reach the store, or cannot write a copy.
    """
    if restore.kind is CheckpointKind.DICT:
        return Restored(restore.step, data=_fetch_bytes(store_url, restore))
    if restore.url == INLINE:
        data = _fetch_bytes(store_url, restore)
        return Restored(restore.step, path=unpack_directory(data, target))
    path = open_store(store_url).get_directory(restore.url, digest=restore.digest, target=target)
    return Restored(restore.step, path=path)


def _fetch_bytes(store_url: str, restore: Restore) -> bytes:
    if restore.url != INLINE:
        return open_store(store_url).get_bytes(restore.url, digest=restore.digest)
    if restore.data is None or digest_of(restore.data) != restore.digest:
        raise CheckpointError(
            f"The checkpoint of step {restore.step} in the database is damaged: "
            "its bytes differ from their digest."
        )
    return restore.data


class Saver:
    """Stores the checkpoints that the user's code gives to `report(checkpoint=)`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store = None if job.store == INLINE else open_store(job.store)

    def prepare(self, checkpoint: Mapping[Any, Any] | str | PathLike[str]) -> bytes | Path:
        """
        Pickle a dict, or check a directory.

        Raises:
            UsageError: The checkpoint is neither a dict nor a path.
            CheckpointError: The dict cannot be pickled, or the directory cannot be copied; the user
                must change the checkpoint.
        """
        if isinstance(checkpoint, Mapping):
            return _pickled(checkpoint)
        if not isinstance(checkpoint, str | PathLike):
            raise UsageError(
                f"checkpoint= was given {type(checkpoint).__name__}; give a dict or a directory."
            )
        path = Path(checkpoint)
        scan(path)
        return path

    def save(self, prepared: bytes | Path, *, kind: CheckpointKind, step: int) -> Saved:
        """
        Store a prepared checkpoint.

        Args:
            prepared: What `prepare` returned.
            step: The last step that the checkpoint contains.

        Returns:
            The checkpoint's record; it contains the bytes if they are stored inline.

        Raises:
            CheckpointError: The store fails or refuses the size; training can continue.
        """
        name, job = str(uuid.uuid4()), self._job
        if self._store is None:
            prepared = self._packed(prepared)
            digest, size_bytes = digest_of(prepared), len(prepared)
            return Saved(name, kind, INLINE, digest, size_bytes, step, prepared)
        place = Place(job.to_import.study_uuid, job.trial_uuid, job.attempt, step, name)
        if isinstance(prepared, bytes):
            stored = self._store.put_bytes(place, prepared)
        else:
            stored = self._store.put_directory(place, prepared)
        return Saved(name, kind, stored.url, stored.digest, stored.size_bytes, step)

    def _packed(self, prepared: bytes | Path) -> bytes:
        limit_bytes = self._job.inline_limit_bytes
        if isinstance(prepared, Path):
            return pack_directory(prepared, limit_bytes=limit_bytes)
        check_inline_size(len(prepared), limit_bytes)
        return prepared


def _pickled(checkpoint: Mapping[Any, Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(dict(checkpoint))
    except Exception as cause:
        raise CheckpointError(
            f"The checkpoint cannot be pickled: {cause}. "
            "Leave out what cannot be pickled, or save a directory."
        ) from cause
    return data
