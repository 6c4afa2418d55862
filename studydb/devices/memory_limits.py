"""
Limits of trials' memory: for a trial as a whole by cgroup v2, or else for each of its processes.

A worker may make cgroups where systemd has delegated a subtree to it (`Delegate=memory`), or where
it runs as root. In such a cgroup the kernel counts what the trial's processes use together, and
kills all of them when they exceed the limit. Without cgroups each process gets RLIMIT_DATA: the
kernel refuses memory over the limit, and Python raises MemoryError. RLIMIT_AS would also count the
addresses that CUDA reserves, which exceed the host's memory.
"""

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from studydb.processes import children_of

_PREFIX = "studydb"
_REMOVE_TRIES, _PAUSE_S = 20, 0.05
_MOVE_TRIES = 5
_numbers = itertools.count(1)


class MemoryLimit(Struct, frozen=True):
    """
    The limit of one trial.

    Attributes:
        cgroup: The folder of the trial's cgroup, which its process enters; None if the limit
            is for each process.
    """

    size_bytes: int
    cgroup: Path | None = None

    def __str__(self) -> str:
        whose = "each of its processes" if self.cgroup is None else "its processes together"
        return f"{whose} may use {self.size_bytes / 1e9:g} GB, as its memory_gb says"

    def was_exceeded(self) -> bool:
        """Whether the kernel's OOM killer has killed a process of the cgroup; False without one."""
        if self.cgroup is None:
            return False
        with suppress(OSError, ValueError):
            for line in (self.cgroup / "memory.events").read_text(encoding="ascii").splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number) > 0
        return False

    def close(self) -> None:
        """Kill the processes in the cgroup, and remove the cgroup; call `was_exceeded` before."""
        if self.cgroup is None:
            return
        _write(self.cgroup / "cgroup.kill", "1")
        for _ in range(_REMOVE_TRIES):
            try:
                self.cgroup.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # a process in it has not ended yet
                time.sleep(_PAUSE_S)
            else:
                return


class MemoryLimits:
    """
    Makes the limits of a worker's trials.

    Args:
        cgroup: The folder of a cgroup whose children can have memory limits; None if limits are
            for each process.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        self.cgroup = cgroup

    @classmethod
    def of_this_process(
        cls,
        own_cgroup_file: Path = Path("/proc/self/cgroup"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> "MemoryLimits":
        """
        Use cgroups if this process may make some; otherwise, limit each process.

        To enable the limits of cgroups, this process may move into a child of its own cgroup.
        Call this at most once in a process, and only if trials may have limits.
        """
        return cls(_delegated(own_cgroup_file, cgroups))

    def limit(self, size_bytes: int) -> MemoryLimit:
        """Make the limit of one trial; limit each process if the trial's cgroup cannot be made."""
        if self.cgroup is None:
            return MemoryLimit(size_bytes)
        folder = self.cgroup / f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        limit = MemoryLimit(size_bytes, folder)
        try:
            folder.mkdir()
        except OSError:
            return MemoryLimit(size_bytes)
        if not _write(folder / "memory.max", str(size_bytes)):
            limit.close()
            return MemoryLimit(size_bytes)
        _write(folder / "memory.swap.max", "0")
        _write(
            folder / "memory.oom.group", "1"
        )  # otherwise a trial that loses one process may hang
        return limit


def _delegated(own_cgroup_file: Path, cgroups: Path) -> Path | None:
    try:
        lines = own_cgroup_file.read_text(encoding="utf-8").splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        folder = cgroups / path.lstrip("/")
        if "memory" not in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
            return None
        enabled = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
        return folder if "memory" in enabled or _enable(folder) else None
    except (OSError, StopIteration, UnicodeDecodeError):
        return None


def _enable(folder: Path) -> bool:
    """
    Enable limits for the children of this process's cgroup.

    The kernel refuses this while a process is in the cgroup itself. So this process and its
    descendants are moved into a child cgroup. The move is made up to 5 times, because a process may
    be forked during a move. If the kernel still refuses, because other processes are in the cgroup,
    this process and its descendants are moved back.
    """
    leaf = folder / f"{_PREFIX}-worker-{os.getpid()}"
    leaf.mkdir(exist_ok=True)  # an earlier process of this pid may have left it
    for _ in range(_MOVE_TRIES):
        _move_family(leaf)
        if _write(folder / "cgroup.subtree_control", "+memory"):
            return True
    _move_family(folder)
    with suppress(OSError):
        leaf.rmdir()
    return False


def _move_family(folder: Path) -> None:
    for pid in _family(os.getpid()):  # the write fails if the process has ended meanwhile
        _write(folder / "cgroup.procs", str(pid))


def _family(pid: int) -> list[int]:
    return [pid, *(each for child in children_of(pid) for each in _family(child))]


def _write(path: Path, text: str) -> bool:
    """Write to a file of a cgroup if the file exists; return whether the kernel took the text."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
