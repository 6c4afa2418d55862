"""Checkpoints in a local or shared directory."""

import os
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from studydb.artifacts import tree
from studydb.artifacts.store import (
    Place,
    Stored,
    check_digest,
    check_uuid,
    digest_of,
    known_parts_of,
)
from studydb.domain.errors import CheckpointError

_MOST_TRIES = 3
"""How often a directory is made again if another process has removed its parent meanwhile."""


class DirectoryStore:
    """
    A directory tree; a checkpoint's object is `<study>/<trial>/<attempt>/<step>-<checkpoint>`.

    The URL in a checkpoint's row is absolute, for people who read rows. The store uses only the
    URL's last four parts. So the tree may be moved, and no row can name a file outside the tree.

    On a host that has not mounted a shared directory, the directory is missing or empty. So only
    `add_study` makes the folder of a study. Without this folder, writes raise CheckpointError, and
    reads raise OSError, so that no checkpoint is marked as corrupt.
    """

    is_remote = False

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def connect(self) -> None:
        """Do nothing: a directory needs no connection."""

    def has_study(self, study_uuid: str) -> bool:
        try:
            return self._folder(study_uuid).is_dir()
        except OSError as cause:
            raise CheckpointError(f"{self.root} cannot be read on this host: {cause}.") from cause

    def check_study(self, study_uuid: str) -> None:
        if not self.has_study(study_uuid):
            raise CheckpointError(self._absence(study_uuid))

    def add_study(self, study_uuid: str) -> None:
        folder = self._folder(study_uuid)
        try:
            _make_directory(folder)
        except OSError as cause:
            raise CheckpointError(f"The folder {folder} cannot be made: {cause}.") from cause

    def put_bytes(self, place: Place, data: bytes) -> Stored:
        with self._temporary(place) as (temporary, url), temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return Stored(url, digest_of(data), len(data))

    def put_directory(self, place: Place, source: Path) -> Stored:
        contents = tree.scan(source)
        with self._temporary(place) as (temporary, url):
            digest, size_bytes = tree.copy(contents, temporary, durable=True)
        return Stored(url, digest, size_bytes)

    def get_bytes(self, url: str, *, digest: str) -> bytes:
        path = self._find(url)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as cause:
            raise CheckpointError(f"The checkpoint {path} is missing: {cause}.") from cause
        check_digest(path, digest_of(data), digest)
        return data

    def get_directory(self, url: str, *, digest: str, target: Path) -> Path:
        path = self._find(url)
        try:
            is_directory = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_directory = False
        if not is_directory:
            raise CheckpointError(f"The checkpoint {path} is missing.")
        try:
            found, _ = tree.copy(tree.scan(path), target, durable=False)
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # this host could not read the files
            raise
        try:
            check_digest(path, found, digest)
        except CheckpointError:
            discard(target)
            raise
        return target

    def exists(self, url: str) -> bool:
        return self._find(url).exists()

    def delete(self, url: str) -> None:
        path = self._locate(url)
        self.check_study(path.parts[-4])
        self._remove(path)
        for emptied in (path.parent, path.parent.parent):
            with suppress(OSError):
                emptied.rmdir()

    def delete_unfinished(self, url: str) -> None:
        self.delete(url)

    def delete_study(self, study_uuid: str) -> None:
        folder = self._folder(study_uuid)
        try:
            if folder.is_symlink():
                raise CheckpointError(
                    f"The folder {folder} is a link to {os.path.realpath(folder)}, and studydb "
                    "deletes no files behind a link. Delete the files, replace the link by an "
                    "empty directory, and repeat the deletion."
                )
            left = [*folder.iterdir(), *self.root.glob(f".{study_uuid}.*")]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as cause:
            raise CheckpointError(f"The folder {folder} cannot be removed: {cause}.") from cause
        _delete_all(left)

    def remove_folder(self, study_uuid: str) -> None:
        with suppress(OSError):
            self._folder(study_uuid).rmdir()

    def _folder(self, study_uuid: str) -> Path:
        return self.root / check_uuid(study_uuid, noun="study")

    def _find(self, url: str) -> Path:
        """
        Return the path of an object to read.

        Raises:
            OSError: The study's folder is missing, or a link leads out of the root. A person may
                have moved the folder to another disk, so the checkpoint must not be marked as
                corrupt.
        """
        path = self._path_of(url)
        study_uuid = path.parts[-4]
        if not self._folder(study_uuid).is_dir():
            raise FileNotFoundError(self._absence(study_uuid))
        if (outside := self._outside(path)) is not None:
            raise OSError(outside)
        return path

    def _absence(self, study_uuid: str) -> str:
        folder = self._folder(study_uuid)
        if self.root.is_dir():
            what = "contains no checkpoints of this study"
        else:
            what = "is not a directory" if self.root.exists() else "does not exist"
        return (
            f"The checkpoint directory {self.root} {what} on this host. Mount it, or use a host "
            "that has it. If it was moved, name its new place: `studydb set NAME "
            "checkpoints=DIRECTORY`. If the checkpoints were deleted on purpose, type: "
            f"`mkdir -p {shlex.quote(str(folder))}`."
        )

    def _locate(self, url: str) -> Path:
        return self._inside(self._path_of(url))

    def _path_of(self, url: str) -> Path:
        return self.root.joinpath(*known_parts_of(url, store=self.root))

    def _inside(self, path: Path) -> Path:
        """Refuse a path that leads out of the root through a link."""
        if (outside := self._outside(path)) is not None:
            raise CheckpointError(outside)
        return path

    def _outside(self, path: Path) -> str | None:
        """Say where a path leads to if a link leads it out of the root; None if it stays inside."""
        real = os.path.realpath(path.parent)
        if Path(real).is_relative_to(os.path.realpath(self.root)):
            return None
        return (
            f"{path} leads out of {self.root}, to {real}, and studydb follows no such link. If you "
            "have moved the files, move them back, or move the whole directory of checkpoints and "
            "name its new place: `studydb set NAME checkpoints=DIRECTORY`."
        )

    @contextmanager
    def _temporary(self, place: Place) -> Iterator[tuple[Path, str]]:
        """Yield a temporary path and the object's URL; move the result to the object's path."""
        path = self._inside(self.root.joinpath(*place.parts))
        self.check_study(place.study_uuid)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            _make_directory(path.parent, within=self._folder(place.study_uuid))
            yield temporary, path.as_uri()
            temporary.rename(path)
            tree.sync_directory(path.parent)
        except OSError as cause:
            raise CheckpointError(
                f"The checkpoint of step {place.step} could not be written below {self.root}: "
                f"{cause}. Training continues, and any earlier checkpoint is kept."
            ) from cause
        finally:
            discard(temporary)

    def _remove(self, path: Path) -> None:
        """
        Remove an object, and the temporary files of its unfinished saves and removals.

        Raises:
            CheckpointError: The object or a temporary file could not be removed.
        """
        try:
            with suppress(FileNotFoundError):
                path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
            left = list(path.parent.glob(f".{path.name}.*"))
        except OSError as cause:
            raise CheckpointError(f"The checkpoint {path} cannot be removed: {cause}.") from cause
        _delete_all(left)


def _delete_all(paths: Iterable[Path]) -> None:
    left = [path for path in paths if not _is_deleted(path)]
    if left:
        raise CheckpointError(f"{left[0]} cannot be deleted.")


def _is_deleted(path: Path) -> bool:
    discard(path)
    return not os.path.lexists(path)


def _make_directory(path: Path, *, within: Path | None = None) -> None:
    """
    Make a directory and its missing parents; fsync them, so that they survive a host's crash.

    Another process may remove an empty parent at the same time; the parent is then made again.

    Args:
        within: A parent that is not made, nor the parents above it: a person may have just moved
            it. If it is missing, OSError is raised.
    """
    for _ in range(_MOST_TRIES):
        with suppress(FileNotFoundError):
            _make_missing(path, within)
            return
    _make_missing(path, within)


def _make_missing(path: Path, within: Path | None) -> None:
    missing = [path]
    while missing[-1].parent != within and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            tree.sync_directory(directory.parent)


def discard(path: Path) -> None:
    """Remove a file or a directory as far as possible; raise no error, even if it is missing."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
