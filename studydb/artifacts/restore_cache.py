"""A cache of remote checkpoints on this host, so that a trial resumes here without the network."""

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from studydb.artifacts import tree
from studydb.artifacts.checkpoint_records import Restore
from studydb.artifacts.directory import discard
from studydb.artifacts.store import digest_of, parts_of
from studydb.domain.errors import CheckpointError, UsageError
from studydb.settings import CACHE_DIR, cache_folder

LEAST_FREE_BYTES = 1 << 30
"""The cache leaves this many bytes of the disk free, for the training."""

STALE_S = 86_400.0
"""A temporary file or directory of this age was left by a process that has died."""

MOST_ENTRIES = 1_000
"""
How many entries the cache has at most. For each new entry the folder is listed, which takes 0.03 s
with 1,000 entries, and 4 s with 100,000.
"""

_ENTRY = re.compile(r"[0-9a-f]{64}-(\d+)")
_LEFTOVER = re.compile(r"\.[0-9a-f]{64}-\d+\..+")
_PRIVATE = 0o700


def open_cache(limit_bytes: int) -> "RestoreCache | None":
    """
    Return this user's cache.

    Returns:
        None if `limit_bytes` is 0, `cache_folder` knows no folder, or `cache_fault` finds a fault.
    """
    if limit_bytes <= 0 or cache_fault() is not None:
        return None
    folder = cache_folder()
    return None if folder is None else RestoreCache(folder, limit_bytes)


def cache_fault() -> str | None:
    """
    Say why the folder that STUDYDB_CACHE_DIR names cannot hold a cache.

    A cache only saves time, so an unusable folder must not end a worker. This function creates
    nothing.

    Returns:
        None if the folder can hold a cache, or the variable is not set.
    """
    try:
        folder = cache_folder()
    except UsageError:
        return _fault("that home directory is unknown.")
    if folder is None or CACHE_DIR not in os.environ:
        return None
    place = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if not place.is_dir():
        return _fault(f"{place} is not a directory.")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return _fault(f"this user may not write to {place}.")
    return None


def _fault(why: str) -> str:
    return (
        f"{CACHE_DIR} is {os.environ[CACHE_DIR]!r}, which cannot hold the cache of checkpoints: "
        f"{why} Without a cache, each restore reads the store. Name a directory that you can write."
    )


class _Entry(NamedTuple):
    used_s: float
    path: Path
    size_bytes: int


class RestoreCache:
    """
    Checkpoints by digest and size in one folder, which any number of processes may share.

    The name of a directory's entry also depends on the path of the directory's object in its store,
    because the digest covers only files: two directories that differ in an empty directory have the
    same digest.

    The entry of a dict is a file, and that of a directory is a directory. An entry is written under
    a temporary name and then renamed, so it is whole. Each use compares the bytes with the digest
    in the signed row while they are copied, so a process that can write to the folder cannot change
    the bytes that a trial restores. To make room, the entry that was used least recently is removed
    first. A removal begins by renaming the entry, so a process that is copying this entry finds the
    next file missing, and reads the store instead. No error of the cache ends a save or a restore.
    Only files and directories with names that the cache gives are removed, because the folder may
    hold other files.

    Args:
        limit_bytes: The entries together have at most this many bytes.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self._limit_bytes = folder, limit_bytes

    def read_bytes(self, restore: Restore) -> bytes | None:
        """Read a dict's bytes; None if the cache has no entry for it, or the entry is damaged."""
        path = self._path(restore.digest, restore.size_bytes)
        try:
            data = _read_regular(path, restore.size_bytes)
        except OSError:
            return None
        if digest_of(data) != restore.digest:
            self._remove(path)
            return None
        _touch(path)
        return data

    def copy_directory(self, restore: Restore, target: Path) -> bool:
        """Copy an entry to `target`; False if the copy fails or the entry is missing or damaged."""
        path = self._path(_key_of_directory(restore.digest, restore.url), restore.size_bytes)
        if not os.path.isdir(path):  # noqa: PTH112  Path.is_dir raises PermissionError
            return False
        try:
            found, _ = tree.copy(tree.scan(path), target, durable=False)
        except (OSError, CheckpointError):  # removed meanwhile, or the target's disk is full
            return False
        if found != restore.digest:
            discard(target)
            self._remove(path)
            return False
        _touch(path)
        return True

    def add_bytes(self, digest: str, data: bytes) -> None:
        """Keep the bytes of a dict, if they fit; other entries are removed to make room."""
        self._add(digest, len(data), lambda path: path.write_bytes(data))

    def add_directory(self, digest: str, size_bytes: int, source: Path, *, url: str) -> None:
        """
        Keep a copy of a directory, if it fits and still has this digest and this size.

        Args:
            url: The URL of the directory's object.
        """

        def write(path: Path) -> None:
            if tree.copy(tree.scan(source), path, durable=False) != (digest, size_bytes):
                raise CheckpointError(f"{source} differs from what the checkpoint's row says.")

        self._add(_key_of_directory(digest, url), size_bytes, write)

    def _add(self, key: str, size_bytes: int, write: Callable[[Path], object]) -> None:
        path = self._path(key, size_bytes)
        if size_bytes > self._limit_bytes or os.path.lexists(path):
            return
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with suppress(OSError, CheckpointError):  # the disk is full, or the source has changed
            self.folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._shrink_to(self._limit_bytes - size_bytes)
            if shutil.disk_usage(self.folder).free < size_bytes + LEAST_FREE_BYTES:
                return
            try:
                write(temporary)
                temporary.rename(path)
            finally:
                discard(temporary)
            self._shrink_to(self._limit_bytes)  # other processes may have added entries

    def _shrink_to(self, limit_bytes: int) -> None:
        entries = sorted(self._entries())
        total_bytes = sum(entry.size_bytes for entry in entries)
        for n_left, entry in zip(range(len(entries), 0, -1), entries, strict=True):
            if total_bytes <= limit_bytes and n_left <= MOST_ENTRIES:
                return
            self._remove(entry.path)
            total_bytes -= entry.size_bytes

    def _entries(self) -> Iterator[_Entry]:
        for path in self.folder.iterdir():
            with suppress(OSError):  # another process has removed it
                used_s, found = path.lstat().st_mtime, _ENTRY.fullmatch(path.name)
                if found is not None:
                    yield _Entry(used_s, path, int(found[1]))
                elif _LEFTOVER.fullmatch(path.name) and used_s < time.time() - STALE_S:
                    discard(path)

    def _path(self, key: str, size_bytes: int) -> Path:
        return self.folder / f"{key}-{size_bytes}"

    def _remove(self, path: Path) -> None:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with suppress(OSError):
            path.rename(aside)
            discard(aside)


def _key_of_directory(digest: str, url: str) -> str:
    """Compute a key from the digest and the parts of the URL that stay if the store is moved."""
    return digest_of("/".join((digest, *(parts_of(url) or ()))).encode())


def _read_regular(path: Path, size_bytes: int) -> bytes:
    """Read a file that is no link and no pipe, and has this size; raise OSError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != size_bytes:
            raise OSError(f"{path} is not a file of {size_bytes} bytes")
        return file.read(size_bytes)


def _touch(path: Path) -> None:
    with suppress(OSError):  # another user's entry
        os.utime(path)
