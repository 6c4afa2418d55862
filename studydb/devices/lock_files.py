"""
Lock files, by which the workers of all users, studies and databases of a host share its devices.

A lock is an OFD lock (`man 2 fcntl_locking`) on a range of bytes. It belongs to an open file and
not to a process: it lasts until the last descriptor of that open file is closed, in the worker and
in the processes that have inherited the descriptor. So no lock outlives the processes that use the
device, and no lock has to be removed after a crash. studydb never removes the files; a file that
something else has removed is made again.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from studydb.domain.errors import HostError, UsageError
from studydb.settings import LOCK_DIR

WHOLE = 1_000_000
"""
How many bytes of a device's file are locked for the whole device. For half a device, half as many
are locked.
"""

_WAITING = WHOLE + 1
"""The byte of a device's file on which each worker that waits for the device has a shared lock."""

TURN_S = 1.0
"""The longest wait while another slot takes devices; taking devices needs milliseconds."""

MORE_FILES = "Raise the limit of open files (`ulimit -n`), or give the worker fewer slots."

_DIRECTORIES = ("/run/lock", "/tmp", "/var/tmp")  # noqa: S108  they are shared on purpose
_SHARED = stat.S_ISVTX | stat.S_IRWXO
"""Bits of a directory's mode: all users may make files there, and remove only their own."""

_TRIES = 100
_PAUSE_S = 0.005
_LOCK = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, pid


def lock_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Choose the directory of the lock files.

    The choice must not depend on the user: two workers with different directories would not exclude
    each other. So this function chooses a directory in which every user may make files, unless the
    environment names a directory.

    Raises:
        UsageError: The directory that the environment names cannot be used.
        HostError: This host has no directory for all users, or no locks that processes inherit.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        raise HostError(
            "Devices can be locked on Linux only. Start the worker with --gpus none; its trials "
            "then see the devices that the worker sees."
        )
    if named := environ.get(LOCK_DIR):
        mode = _mode(named)
        if mode is None or not os.access(named, os.W_OK | os.X_OK):
            raise UsageError(
                f"{LOCK_DIR} is {named}, where this user can make no file. Correct it."
            )
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UsageError(
                f"{LOCK_DIR} is {named}, where every user can remove the files of others. "
                f"Run: chmod +t {named}"
            )
        return Path(named)
    for path in _DIRECTORIES:
        if ((_mode(path) or 0) & _SHARED) == _SHARED:
            return Path(path)
    raise HostError(
        f"This host has no directory in which all users can lock devices: none of "
        f"{', '.join(_DIRECTORIES)} has the mode 1777. Name a directory in {LOCK_DIR}, or start "
        "the worker with --gpus none."
    )


def _mode(path: str) -> int | None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  the path is a text
    except OSError:
        return None
    return mode if stat.S_ISDIR(mode) else None


class LockFile:
    """
    An open lock file. Two objects for the same file compete for its locks, even in one process.

    Raises:
        HostError: The file cannot be opened or locked, or is no regular file.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"studydb-gpu-{re.sub(r'[^0-9A-Za-z-]', '_', name)}.lock"
        self.descriptor = _open(self.path)

    def close(self) -> None:
        """Close the descriptor; the locks stay while any process has an open copy of it."""
        os.close(self.descriptor)

    def can_share(self) -> bool:
        """Tell whether `share` would succeed now."""
        kind, *_ = self._call(fcntl.F_OFD_GETLK, fcntl.F_RDLCK, 0, WHOLE)
        return kind == fcntl.F_UNLCK

    def free_ranges(self, start: int = 0, end: int = WHOLE) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the size of each range that no other `LockFile` has locked."""
        if start >= end:
            return
        kind, _, first, length, _ = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, end - start)
        if kind == fcntl.F_UNLCK:
            yield start, end - start
            return
        yield from self.free_ranges(start, first)
        if length:  # a length of 0 means: up to the end of the file
            yield from self.free_ranges(max(start, first + length), end)

    @property
    def free(self) -> int:
        """The number of bytes in `free_ranges()`."""
        return sum(size for _, size in self.free_ranges())

    def lock(self, size: int) -> bool:
        """
        Lock `size` free bytes. Call this only within a `turn`.

        Returns:
            False if fewer bytes are free; the bytes locked by this call stay locked until `close`.
        """
        left = size
        for start, length in list(self.free_ranges()):
            taken = min(left, length)
            if taken and self._set(fcntl.F_WRLCK, start, taken):
                left -= taken
        return left == 0

    def share(self) -> bool:
        """Take a shared lock of the device; return False if a part has an exclusive lock."""
        return self._set(fcntl.F_RDLCK, 0, WHOLE)

    def try_turn(self) -> bool:
        """Take the turn by a lock of one byte; return False if another `LockFile` has the turn."""
        return self._set(fcntl.F_WRLCK, WHOLE, 1)

    def show_wait(self) -> bool:
        """Show other workers that this worker waits for the device, until the file is closed."""
        return self._set(fcntl.F_RDLCK, _WAITING, 1)

    def is_awaited(self) -> bool:
        """Tell whether a worker waits for the device, not counting `show_wait` of this object."""
        kind, *_ = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, _WAITING, 1)
        return kind != fcntl.F_UNLCK

    def _set(self, kind: int, start: int, length: int) -> bool:
        try:
            self._call(fcntl.F_OFD_SETLK, kind, start, length)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _call(self, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
        request = _LOCK.pack(kind, os.SEEK_SET, start, length, 0)
        try:
            return _LOCK.unpack(fcntl.fcntl(self.descriptor, command, request))
        except (BlockingIOError, PermissionError):  # another `LockFile` has the lock
            raise
        except OSError as cause:
            raise HostError(
                f"This host cannot lock {self.path}: {cause.strerror}. Name a local directory in "
                f"{LOCK_DIR}, or start the worker with --gpus none."
            ) from cause


@contextmanager
def turn(directory: Path) -> Iterator[bool]:
    """
    Make other slots, of this and other workers, wait while this slot locks some free devices.

    Without turns, two slots that want two devices each could get one each, and both would fail.

    Yields:
        Whether this slot has the turn. False if another slot, whose worker may be suspended, keeps
        the turn for more than a second.
    """
    file = LockFile(directory, "turn")
    try:
        deadline_s = time.monotonic() + TURN_S
        while not (has_turn := file.try_turn()) and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
        yield has_turn
    finally:
        file.close()


def _open(path: Path) -> int:
    for _ in range(_TRIES):
        try:
            # Without O_CREAT: Linux refuses it for files of other users (fs.protected_regular).
            descriptor = os.open(
                path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
        except FileNotFoundError:
            _make(path)
            continue
        except OSError as cause:
            if cause.errno in (errno.EMFILE, errno.ENFILE):
                raise HostError(
                    f"This host cannot open the lock file {path}: {cause.strerror}. {MORE_FILES}"
                ) from cause
            raise _unusable(path, cause.strerror or str(cause)) from cause
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _unusable(path, "it is no regular file")
        with suppress(OSError):  # systemd-tmpfiles removes no file that is locked in this way
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # the file was removed after it was opened
    raise _unusable(path, "it is removed again and again")


def _unusable(path: Path, why: str) -> HostError:
    return HostError(
        f"The lock file {path} cannot be used: {why}. Remove it, or name another directory in "
        f"{LOCK_DIR}."
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _make(path: Path) -> None:
    """
    Make a lock file that every user may open.

    The file gets its mode before its name, so that no other user finds the file with another mode,
    even if this process is killed in between.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o666)
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.close(descriptor)
            temporary.unlink()
    except OSError as cause:
        raise _unusable(path, cause.strerror or str(cause)) from cause
