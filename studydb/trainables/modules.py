"""
Find where a module would be imported from, without running its code.

This file also runs as a script in a fresh interpreter: it reads a JSON list of names from stdin and
writes a JSON dict of places by name to stdout. It imports nothing of studydb, because that
interpreter may not find studydb.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def place_of(name: str) -> list[str] | None:
    """
    Find where the interpreter would import a module from.

    The packages above the module are not imported. If the code of a package adds a directory to the
    package's `__path__`, the modules in this directory are not found.

    Returns:
        The real path of the module's file, as a list of one, or the real paths of the directories
        of a namespace package; None if the module is not found.
    """
    parts = name.split(".")
    stubs: list[str] = []
    within: list[str] | None = None
    found: list[str] = []
    try:
        for depth in range(1, len(parts) + 1):
            package = ".".join(parts[:depth])
            spec = _find_spec(package, within)
            if spec is None:
                return None
            below = spec.submodule_search_locations
            if below is None and depth < len(parts):
                return None
            within = None if below is None else list(below)
            found = [spec.origin] if spec.origin else within or []
            _register_stub(package, within, stubs)
    finally:
        for stub in stubs:
            del sys.modules[stub]
    return [os.path.realpath(path) for path in found]


def _find_spec(name: str, within: list[str] | None) -> ModuleSpec | None:
    found = (finder.find_spec(name, within) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _register_stub(package: str, within: list[str] | None, stubs: list[str]) -> None:
    """Put a stub of a package into `sys.modules`, where namespace packages look up their parent."""
    if package not in sys.modules and within is not None:
        stub = ModuleType(package)
        stub.__path__ = within
        sys.modules[package] = stub
        stubs.append(package)


def main() -> None:
    sys.path.insert(0, str(os.getcwd()))  # noqa: PTH109  importing pathlib takes time
    names = json.load(sys.stdin)
    sys.stdout.write(json.dumps({name: place_of(name) for name in names}))


if __name__ == "__main__":
    main()
