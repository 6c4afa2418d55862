"""
Whether a process may be forked after it has imported a user's module.

A fork has only the caller's thread, and none of its parent's child processes. It cannot use its
parent's context on an accelerator. It shares open files, sockets and shared memory with other
forks. So the import must leave no second thread that a fork would lack, no child process, no
context, and nothing open. On a system without /proc these conditions cannot be checked, and no
process may be forked.
"""

import ctypes
import os
import stat
import sys
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from msgspec import Struct

from studydb.domain.text.display import counted
from studydb.processes import children_of, fork

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg", "/dev/accel")
"""Beginnings of the device files of NVIDIA, AMD, Intel and other accelerators."""

_CUDA_LIBRARY = "/libcuda.so"
_CUDA_ERROR_NOT_INITIALIZED = 3
"""The status that cuDeviceGetCount of the CUDA Driver API returns until cuInit has succeeded."""
_DEVICE_FILES = Path("/dev")
_NVIDIA_CARDS = "nvidia[0-9]*"
"""Matches the files of all cards, because a container may lack the file of the first card."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FORK_SAFE_THREADS = {"jemalloc_bg_thd": "pyarrow"}
"""
Native threads whose absence does no harm in a forked process: the thread's name, and the module
whose import starts it.

pyarrow contains jemalloc 5.3, which in a forked process frees memory without its thread. pandas
imports pyarrow if pyarrow is installed.
"""


def descriptors() -> frozenset[int]:
    """Return the descriptors that are open now."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = {int(entry.name) for entry in entries}
    return frozenset(number for number in numbers if _is_open(number))


class Snapshot(Struct, frozen=True):
    """The open descriptors of a process, and the addresses of its shared memory."""

    descriptors: frozenset[int]
    shared: frozenset[str]


def take_snapshot() -> Snapshot:
    """Record the descriptors and shared memory of this process."""
    return Snapshot(descriptors(), frozenset(_shared_memory()))


def reason_against(before: Snapshot, *, uses_devices: bool = False) -> str | None:
    """
    Return why this process must not be forked, or None.

    Libraries that support forks, such as OpenBLAS, end their threads when the process forks. So the
    check forks once and then counts the native threads of this process. Any thread that is still
    there, except the main thread and jemalloc's, belongs to a library that does not support forks.

    Args:
        before: The snapshot from before the import.
        uses_devices: Whether the forks are to hold devices. If so, the process must not
            be forked once CUDA is initialized, even if no card is visible to this process.
    """
    if not Path("/proc/self/task").exists():
        return "this system has no /proc to check what the import has opened"
    if (n_threads := threading.active_count()) > 1:
        return f"the import has started {counted(n_threads - 1, 'Python thread')}"
    found = (
        _descriptor(before.descriptors)
        or _device(uses_devices=uses_devices)
        or _memory(before.shared)
        or _process()
    )
    return found or _native_threads()


def _descriptor(before: AbstractSet[int]) -> str | None:
    for number in sorted(descriptors() - before):
        target = _target(number)
        try:
            mode = os.fstat(number).st_mode
        except OSError:  # closed in the meantime
            continue
        if stat.S_ISSOCK(mode):
            return "the import has opened a socket"
        # All forked processes would share one reading position in an open file.
        return f"the import has left {target} open"
    return None


def _memory(before: AbstractSet[str]) -> str | None:
    if set(_shared_memory()) - before:
        return "the import has mapped memory that forked processes would share"
    return None


def _shared_memory() -> Iterator[str]:
    for fields in _mappings():
        if fields[1].startswith("rw") and fields[1].endswith("s"):
            yield fields[0]


def _device(*, uses_devices: bool = False) -> str | None:
    open_paths = {_target(number) for number in descriptors()}
    for path in open_paths | mapped_files():
        if path.startswith(_DEVICES):
            return f"the import has opened the device {path}"
    if (uses_devices or may_use_cuda()) and has_initialized_cuda():
        return "the import may have initialized CUDA, and trials may use a GPU here"
    return None


def has_initialized_cuda() -> bool:
    """
    Whether CUDA is initialized in this process, so that its forks cannot use CUDA.

    A process that has only loaded libcuda may be forked: `import torch` loads it (PyTorch 2.11 with
    CUDA 13, through cuBLASLt). A libcuda whose cuDeviceGetCount cannot be called counts as
    initialized.
    """
    loaded = [path for path in mapped_files() if _CUDA_LIBRARY in path]
    return any(_device_count_status(path) != _CUDA_ERROR_NOT_INITIALIZED for path in loaded)


def _device_count_status(path: str) -> int | None:
    """Return the status of cuDeviceGetCount of the loaded library; None if it cannot be called."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        status: int = library.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    except (OSError, AttributeError):
        return None
    return status


def may_use_cuda() -> bool:
    """Whether this host has an NVIDIA card that trials may use."""
    return os.environ.get(_VISIBLE, "all") not in ("", "-1") and has_nvidia_card()


def has_nvidia_card() -> bool:
    return any(_DEVICE_FILES.glob(_NVIDIA_CARDS))


def mapped_files() -> set[str]:
    """Return the files that are mapped into this process's memory."""
    paths = (fields[5].rstrip("\n") for fields in _mappings() if fields[5:])
    return {path for path in paths if path.startswith("/")}


def _mappings() -> Iterator[list[str]]:
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield line.split(maxsplit=5)


def _process() -> str | None:
    if running := children_of(os.getpid()):
        return f"the import has started process {running[0]}"
    return None


def _native_threads() -> str | None:
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = _thread_names()
    known = [name for name in names if _FORK_SAFE_THREADS.get(name) in sys.modules]
    if (n_threads := len(names) - 1 - len(known)) > 0:
        found = counted(n_threads, "native thread")
        return f"the import has started {found}, which would be missing after a fork"
    return None


def _thread_names() -> list[str]:
    """Return the names of this process's threads, as the kernel keeps them: at most 15 bytes."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n"))
        except (FileNotFoundError, ProcessLookupError):
            if task.exists():
                names.append("")
    return names


def _is_open(number: int) -> bool:
    """Whether a descriptor is open; os.scandir also lists its own descriptor, now closed."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _target(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115  socket:[…] is not a path
    except OSError:
        return ""
