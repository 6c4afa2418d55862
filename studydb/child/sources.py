"""The source files that a process has imported, and whether they have changed since."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The size and modification time of a file when `imported_files` saw the file."""

    path: str
    size_bytes: int
    mtime_ns: int


def imported_files(names: Iterable[str]) -> tuple[SourceFile, ...]:
    """List the modules' existing files, except files of Python, studydb and installed packages."""
    roots = _installed_roots()
    found = {path: _stat(path) for path in _module_files(names) if not path.startswith(roots)}
    return tuple(file for file in found.values() if file is not None)


def changed(files: Iterable[SourceFile]) -> SourceFile | None:
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


def _stat(path: str) -> SourceFile | None:
    try:
        found = os.stat(path)  # noqa: PTH116  called for each file at each fork
    except OSError:
        return None
    return SourceFile(path, found.st_size, found.st_mtime_ns)
