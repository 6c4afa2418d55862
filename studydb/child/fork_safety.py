"""
Whether a process may be forked again and again after it has imported a user's module.

A fork copies memory and descriptors, but only the thread that forks. So it is safe only for a
process without other threads, without a context on an accelerator, and whose descriptors two
copies may share. What an import leaves behind is looked at, not assumed; without /proc nothing can
be seen, and nothing counts as safe.
"""

import os
import stat
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from studydb.processes import children_of

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg", "/dev/accel")
"""Where accelerators of NVIDIA, AMD, Intel and others are opened."""

_CUDA_LIBRARY = "/libcuda.so"
_NVIDIA_CARD = "/dev/nvidia0"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def descriptors() -> frozenset[int]:
    """The descriptors that are open now."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = {int(entry.name) for entry in entries}
    return frozenset(number for number in numbers if _is_open(number))


@dataclass(frozen=True, slots=True)
class Before:
    """What a process had before an import: open descriptors, memory shared with other processes."""

    descriptors: frozenset[int]
    shared: frozenset[str]


def look() -> Before:
    """Take note of what this process has now."""
    return Before(descriptors(), frozenset(_shared_memory()))


def reason_against(before: Before) -> str | None:
    """
    Say what forbids this process to be forked.

    Forks once to find out: libraries that are prepared for a fork (OpenBLAS) end their threads
    before it, so that a thread that is left after it belongs to one that is not.

    Args:
        before: What there was before the import.

    Returns:
        The reason in words, or None when a fork is safe.
    """
    if not Path("/proc/self/task").exists():
        return "this system does not show what an import leaves behind"
    if (n_threads := threading.active_count()) > 1:
        return f"the import has started {n_threads - 1} Python threads"
    found = _descriptor(before.descriptors) or _device() or _memory(before.shared) or _process()
    return found or _native_threads()


def _descriptor(before: AbstractSet[int]) -> str | None:
    for number in sorted(descriptors() - before):
        target = _target(number)
        try:
            mode = os.fstat(number).st_mode
        except OSError:  # closed meanwhile
            continue
        if stat.S_ISSOCK(mode):
            return "the import has opened a socket"
        # A place in a file that is read is shared by all copies, too.
        return f"the import has left {target} open"
    return None


def _memory(before: AbstractSet[str]) -> str | None:
    if set(_shared_memory()) - before:
        return "the import has mapped memory that copies would share"
    return None


def _shared_memory() -> Iterator[str]:
    """The addresses of writable mappings that a fork does not copy."""
    for fields in _mappings():
        if fields[1].startswith("rw") and fields[1].endswith("s"):
            yield fields[0]


def _device() -> str | None:
    open_paths = {_target(number) for number in descriptors()}
    for path in open_paths | mapped_files():
        if path.startswith(_DEVICES):
            return f"the import has opened the device {path}"
    if may_use_cuda() and any(_CUDA_LIBRARY in path for path in mapped_files()):
        return "the import has loaded libcuda, and trials may use a GPU here"
    return None


def may_use_cuda() -> bool:
    """Whether a trial of this host may find an NVIDIA card."""
    return os.environ.get(_VISIBLE, "all") not in ("", "-1") and Path(_NVIDIA_CARD).exists()


def mapped_files() -> set[str]:
    """The files that are mapped into this process's memory."""
    return set(_mapped_files())


def _mapped_files() -> Iterator[str]:
    for fields in _mappings():
        if len(fields) > 5 and fields[5].startswith("/"):  # noqa: PLR2004  the path is the sixth
            yield fields[5].rstrip("\n")


def _mappings() -> Iterator[list[str]]:
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield line.split(maxsplit=5)


def _process() -> str | None:
    if running := children_of(os.getpid()):
        return f"the import has started process {running[0]}"
    return None


def _native_threads() -> str | None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if (n_threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208  names, not paths
        return f"the import has started {n_threads - 1} native threads that outlive a fork"
    return None


def _is_open(number: int) -> bool:
    """Not the one by which the folder was listed."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _target(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115  socket:[…] is no path
    except OSError:
        return ""
