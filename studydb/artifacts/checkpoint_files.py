"""Save and fetch checkpoints in the forms that the user's code sees: dicts and directories."""

import pickle
import uuid
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from studydb.artifacts.checkpoint_records import Restore, Saved, Upload
from studydb.artifacts.inline import (
    INLINE,
    INLINE_LIMIT_BYTES,
    check_inline_size,
    pack_directory,
    unpack_directory,
)
from studydb.artifacts.restore_cache import RestoreCache
from studydb.artifacts.store import Place, Store, Stored, digest_of
from studydb.artifacts.store_urls import open_store
from studydb.artifacts.stores import Stores
from studydb.artifacts.tree import scan
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.errors import CheckpointError, UsageError
from studydb.domain.text.display import with_article
from studydb.domain.text.other_tools import missing_attribute

CheckpointLike = Mapping[Any, Any] | str | PathLike[str]


class Restored:
    """
    A checkpoint that was fetched. An example is `trial.checkpoint`, from which an attempt starts.

    Attributes:
        step: The last step that the checkpoint contains.
    """

    def __init__(self, step: int, *, data: bytes | None = None, path: Path | None = None) -> None:
        self.step = step
        self._data = data
        self._path = path

    def to_dict(self) -> dict[Any, Any]:
        """
        Return a new copy of the dict that was saved.

        Raises:
            CheckpointError: The checkpoint is a directory, or an uploaded pickle of another type.
        """
        if self._data is None:
            raise CheckpointError("The checkpoint is a directory; use its .path.")
        found = pickle.loads(self._data)  # noqa: S301  signed, see artifacts/signing.py
        if not isinstance(found, Mapping):
            raise CheckpointError(
                f"The checkpoint of step {self.step} holds {with_article(type(found).__name__)}, "
                "not a dict. Upload a pickled dict."
            )
        return dict(found)

    @property
    def path(self) -> Path:
        """
        A copy of the saved directory.

        You may change the copy. The copy is removed after the attempt.
        """
        if self._path is None:
            raise CheckpointError("The checkpoint is a dict; use its .to_dict().")
        return self._path

    @property
    def data(self) -> bytes | None:
        """The pickle of a dict; None for a directory."""
        return self._data

    if not TYPE_CHECKING:  # so that a type checker finds wrong names

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; the message translates names of other tools into studydb's."""
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<checkpoint of step {self.step}: {'dict' if self._path is None else self._path}>"


def fetch(restore: Restore, *, target: Path, cache: RestoreCache | None = None) -> Restored:
    """
    Fetch a checkpoint and check its digest; the caller has verified its signature.

    Args:
        target: The path for the copy of a directory; it must not exist.
        cache: The cache to read before the store, and to fill with what a remote store returns;
            None to always read the store.

    Raises:
        CheckpointError: The bytes are missing or corrupt, or the store fails.
        OSError: This host cannot reach the store, or cannot write a copy.
    """
    if restore.kind is CheckpointKind.DICT:
        return Restored(restore.step, data=_fetch_bytes(restore, cache))
    if restore.url == INLINE:
        return Restored(restore.step, path=unpack_directory(_inline_bytes(restore), target))
    if cache is not None and cache.copy_directory(restore, target):
        return Restored(restore.step, path=target)
    store = _store_of(restore)
    path = store.get_directory(restore.url, digest=restore.digest, target=target)
    if cache is not None and store.is_remote:
        cache.add_directory(restore.digest, restore.size_bytes, path, url=restore.url)
    return Restored(restore.step, path=path)


def _fetch_bytes(restore: Restore, cache: RestoreCache | None) -> bytes:
    if restore.url == INLINE:
        return _inline_bytes(restore)
    if cache is not None and (found := cache.read_bytes(restore)) is not None:
        return found
    store = _store_of(restore)
    data = store.get_bytes(restore.url, digest=restore.digest)
    if cache is not None and store.is_remote:
        cache.add_bytes(restore.digest, data)
    return data


def _store_of(restore: Restore) -> Store:
    return open_store((restore.stores or Stores(INLINE)).store_of(restore.url))


def _inline_bytes(restore: Restore) -> bytes:
    if restore.data is None or digest_of(restore.data) != restore.digest:
        raise CheckpointError(
            f"The checkpoint of step {restore.step} in the database is damaged: "
            "its bytes differ from their digest."
        )
    return restore.data


class Saver:
    """Stores checkpoints that a trial reports, or that a user gives a new trial to start from."""

    def __init__(
        self,
        store_url: str,
        *,
        study_uuid: str,
        trial_uuid: str,
        attempt: int,
        inline_limit_bytes: int = INLINE_LIMIT_BYTES,
        cache: RestoreCache | None = None,
    ) -> None:
        self._cache = cache
        self._store = None if store_url == INLINE else open_store(store_url)
        self._study_uuid, self._trial_uuid, self._attempt = study_uuid, trial_uuid, attempt
        self._inline_limit_bytes = inline_limit_bytes

    @property
    def is_remote(self) -> bool:
        """Whether checkpoints go to a remote store, not to a directory or the database."""
        return self._store is not None and self._store.is_remote

    def connect(self) -> None:
        """
        Import the library of a remote store, and prepare its connection.

        Does nothing for a directory or the database.

        Only the trial's own thread may import the library. The trial's code may fork, for example
        in a data loader. If another thread were importing the library at that moment, the forked
        process would hold the import locks of half-imported modules for ever.

        Raises:
            CheckpointError: The library is missing, or cannot be prepared.
        """
        if self._store is not None:
            self._store.connect()

    def begin(self, *, step: int) -> Upload | None:
        """
        Name the object of the next checkpoint; None if the checkpoint will be in the database.

        The upload must be recorded in the database before `save` is called, so that the bytes can
        be found and deleted if this process dies.

        Raises:
            CheckpointError: The UUID of the study or of the trial is damaged.
        """
        if self._store is None:
            return None
        name = str(uuid.uuid4())
        parts = self._place(step, name).parts
        return Upload(name, "/".join((self._store.url.rstrip("/"), *parts)))

    def save(self, prepared: bytes | Path, *, step: int, upload: Upload | None) -> Saved:
        """
        Store a prepared checkpoint.

        Args:
            prepared: What `prepare` returned.
            step: The last step that the checkpoint contains.
            upload: What `begin` returned.

        Returns:
            The checkpoint's record; it contains the bytes if they are stored inline.

        Raises:
            CheckpointError: The store fails, a directory cannot be read, or the checkpoint is too
                large for the database; training can continue.
        """
        kind = CheckpointKind.DICT if isinstance(prepared, bytes) else CheckpointKind.DIRECTORY
        if self._store is None or upload is None:
            data = self._packed(prepared)
            name = str(uuid.uuid4())
            return Saved(name, kind, INLINE, digest_of(data), len(data), step, data)
        place = self._place(step, upload.uuid)
        if isinstance(prepared, bytes):
            stored = self._store.put_bytes(place, prepared)
        else:
            stored = self._store.put_directory(place, prepared)
        if self._cache is not None and self._store.is_remote:
            _fill(self._cache, prepared, stored)
        return Saved(upload.uuid, kind, stored.url, stored.digest, stored.size_bytes, step)

    def _place(self, step: int, name: str) -> Place:
        return Place(self._study_uuid, self._trial_uuid, self._attempt, step, name)

    def _packed(self, prepared: bytes | Path) -> bytes:
        if isinstance(prepared, Path):
            return pack_directory(prepared, limit_bytes=self._inline_limit_bytes)
        check_inline_size(len(prepared), self._inline_limit_bytes)
        return prepared


def _fill(cache: RestoreCache, prepared: bytes | Path, stored: Stored) -> None:
    """Add a stored checkpoint to the cache; the copy takes little time compared with the upload."""
    if isinstance(prepared, bytes):
        cache.add_bytes(stored.digest, prepared)
    else:
        cache.add_directory(stored.digest, stored.size_bytes, prepared, url=stored.url)


def prepare(checkpoint: CheckpointLike) -> bytes | Path:
    """
    Pickle a dict, or check a directory.

    Raises:
        UsageError: The checkpoint is neither a dict nor a path.
        CheckpointError: The dict cannot be pickled, or `scan` refuses the directory; the user must
            change the checkpoint.
    """
    if isinstance(checkpoint, Mapping):
        return pickled(checkpoint)
    if not isinstance(checkpoint, str | PathLike):
        raise UsageError(
            f"checkpoint= was given {type(checkpoint).__name__}; give a dict or a directory."
        )
    path = Path(checkpoint)
    scan(path)
    return path


def pickled(checkpoint: Mapping[Any, Any]) -> bytes:
    """
    Pickle a dict.

    Raises:
        CheckpointError: The dict cannot be pickled; the user must change it.
    """
    try:
        data: bytes = cloudpickle.dumps(dict(checkpoint))
    except Exception as cause:
        raise CheckpointError(
            f"The checkpoint cannot be pickled: {cause}. "
            "Leave out what cannot be pickled, or save a directory."
        ) from cause
    return data
