"""
Where a module would be imported from, without running any of its code.

Run as a script, it answers for a fresh interpreter in the working directory: a JSON list of names
on stdin, a JSON dict of places on stdout. So it imports nothing of studydb.
"""

import json
import os
import sys
from collections.abc import Sequence


def place_of(name: str) -> list[str] | None:
    """
    Where the interpreter would find a module.

    Packages above it are walked, not imported: one that moves its own `__path__` when it is
    imported hides what is below.

    Returns:
        The module's file, or the directories of a namespace package; None when it is not found.
    """
    parts = name.split(".")
    within: Sequence[str] | None = None
    found: list[str] = []
    for depth in range(1, len(parts) + 1):
        for finder in sys.meta_path:
            spec = finder.find_spec(".".join(parts[:depth]), within)
            if spec is not None:
                break
        else:
            return None
        within = spec.submodule_search_locations
        found = [spec.origin] if spec.origin else list(within or ())
        if within is None and depth < len(parts):
            return None
    return [os.path.realpath(path) for path in found]


def main() -> None:
    """Answer one question on stdin."""
    sys.path.insert(0, str(os.getcwd()))  # noqa: PTH109  without what `pathlib` costs to import
    names = json.load(sys.stdin)
    sys.stdout.write(json.dumps({name: place_of(name) for name in names}))


if __name__ == "__main__":
    main()
