"""
Temporary directories. A later process removes a directory whose process was killed.

A process locks its directory. However the process ends, the kernel then frees the lock, so no
living process uses a directory that can be locked. The directory's name has a hash of the host's
name, because some network file systems do not show the lock to other hosts: a host removes only
directories with its own hash.
"""

import fcntl
import os
import platform
import shutil
import stat
import tempfile
import zlib
from contextlib import suppress
from types import TracebackType

PREFIX = f"studydb-tmp-{zlib.crc32(platform.node().encode()):08x}-"


class TemporaryDirectory:
    """
    A new directory of this user, which is removed at the end of a `with` block.

    Attributes:
        path: The absolute path.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, *, parent: str | None = None) -> None:
        """Make the directory in `parent`, by default where `tempfile` makes its directories."""
        # `remove_abandoned` of another process may remove the directory before it is locked.
        while True:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
            with suppress(FileNotFoundError):
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                if _can_lock(self._descriptor) is not False and os.path.isdir(self.path):  # noqa: PTH112
                    return
                os.close(self._descriptor)

    def __enter__(self) -> str:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the directory; what cannot be removed stays until `remove_abandoned`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _remove_tree(self.path, descriptor)
            os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the directories of this user on this host whose processes have ended."""
    for parent in {tempfile.gettempdir(), "/tmp"}:  # noqa: S108
        with suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX):
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_uid == os.geteuid() and _can_lock(descriptor):
            _remove_tree(path, descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(path: str, descriptor: int) -> None:
    """
    Remove a directory, even if it contains directories in which their owner may not write.

    The modes are changed through the descriptor, because another user may put a symbolic link at
    the path once the directory is gone. What cannot be removed stays, for example if the process
    may open no further file.
    """
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        for _, names, _, folder in os.fwalk(".", dir_fd=descriptor):  # only what is left
            for name in names:
                with suppress(OSError):
                    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        os.chmod(name, 0o700, dir_fd=folder)
    shutil.rmtree(path, ignore_errors=True)


def _can_lock(descriptor: int) -> bool | None:
    """Lock a directory; False if another process holds the lock, None if locks do not work."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # for example on NFS
        return None
    return True
