"""Whether a process that has imported the trainable must be replaced by a new one."""

import os
import resource
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

GROWTH_FACTOR = 2.0
GROWTH_BYTES = 64 << 20
"""A process is replaced when its memory is above 64 MiB + twice its memory at `measure`."""

OPEN_FILES_SHARE = 0.25
"""
A process is replaced when, since `measure`, the number of its open files has risen by more than
this share of its limit of open files.
"""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _SourceFile(Struct, frozen=True):
    """The size and modification time of a file when `_imported_files` saw the file."""

    path: str
    size_bytes: int
    mtime_ns: int


class Staleness:
    """
    Detects changes of imported source files, and growth of the process's memory or open files.

    Args:
        began_ns: When the imports began. A file that was changed later may be newer on disk than in
            memory, so it counts as changed.
    """

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._names: set[str] = set()
        self._files: list[_SourceFile] = []
        self._late: _SourceFile | None = None
        self._first_bytes = self._first_files = 0
        self._note_imports()
        self.measure()

    def measure(self) -> None:
        """Measure memory and open files; `reason` compares later measurements with these."""
        self._first_bytes, self._first_files = _resident_bytes(), _n_files()

    def fork(self) -> None:
        """Continue in a fork of the process; the fork's own imports begin now."""
        self._began_ns = time.time_ns()

    def reason_after_trial(self) -> str | None:
        """Look for new imports; return why the process must be replaced after a trial, or None."""
        self._note_imports()
        return self.reason()

    def reason(self) -> str | None:
        """
        Return why the process must be replaced, or None; do not look for new imports.

        A template calls this before each fork. After a fork, the kernel copies each page that is
        written to. Reading `sys.modules` would write the reference counts of all modules, which
        costs 1.4 ms for 1,000 modules.
        """
        if file := self._late or _changed(self._files):
            return f"{file.path} has changed"
        if _resident_bytes() > self._first_bytes * GROWTH_FACTOR + GROWTH_BYTES:
            return "the memory of the former process has grown"
        if (n_more := _n_files() - self._first_files) > _files_limit() * OPEN_FILES_SHARE:
            return f"trials have left {n_more} files or sockets of the former process open"
        return None

    def _note_imports(self) -> None:
        names = sys.modules.keys() - self._names
        if not names:
            return
        self._names |= names
        files = _imported_files(names)
        self._files += files
        # A time in the future comes from another clock, so the file does not count as changed.
        now_ns = time.time_ns()
        late = (file for file in files if self._began_ns <= file.mtime_ns <= now_ns)
        self._late = self._late or next(late, None)


def _imported_files(names: Iterable[str]) -> tuple[_SourceFile, ...]:
    """List the modules' existing files, except files of Python, studydb and installed packages."""
    roots = _installed_roots()
    found = {path: _stat(path) for path in _module_files(names) if not path.startswith(roots)}
    return tuple(file for file in found.values() if file is not None)


def _changed(files: Iterable[_SourceFile]) -> _SourceFile | None:
    """Return the first file that is gone or has another size or time; None if all are unchanged."""
    return next((file for file in files if _stat(file.path) != file), None)


def _module_files(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and path:
            yield os.path.realpath(path)


def _installed_roots() -> tuple[str, ...]:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    places.append(str(Path(__file__).parents[1]))  # studydb itself, which may be a checkout
    return tuple({os.path.realpath(place) + os.sep for place in places if place})


def _stat(path: str) -> _SourceFile | None:
    try:
        found = os.stat(path)  # noqa: PTH116  called for each file at each fork
    except OSError:
        return None
    return _SourceFile(path, found.st_size, found.st_mtime_ns)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  read at each fork
        return int(file.read().split()[1]) * _PAGE_BYTES


def _n_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names, not paths


def _files_limit() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft
