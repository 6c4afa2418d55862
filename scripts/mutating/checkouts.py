"""Copies of the checkout in which one guard at a time is removed and tests are run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutating.guards import ROOT, Guard

COPIED = ("studydb", "alembic", "tests", "scripts", "workers", "pyproject.toml", "README.md")
TIMEOUT_S = 3600.0
"""
The limit for one run of pytest. Long runs are those of a whole file, and those that check the first
tests of many guards together before the first removal.
"""

WITHOUT_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""
Tests run without this variable. With it, Python would store no bytecode, and each test process
would compile changed files and tests again.
"""

EVERY_CASE = "STUDYDB_EVERY_CASE"
"""
With the value 1 all tests and cases run, except tests with the markers bench, gpu or oracle. Some
guards are needed in only a few cases.
"""

FAILED = 1
"""The exit code of pytest when tests have failed."""

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--timeout=120")
"""Options of pytest. A test may hang when a guard is removed; `--timeout` makes the test fail."""

_FAILURE = re.compile(r"^(?:FAILED|ERROR|SUBFAIL\S*) (?:.*? )?(tests/.+?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout, and the environment variables of its tests."""

    path: Path
    environment: dict[str, str]

    @contextmanager
    def without(self, guard: Guard) -> Iterator[None]:
        """Remove a guard from the copy until the block ends."""
        originals = {patch.path: (self.path / patch.path).read_text() for patch in guard.patches}
        try:
            for patch in guard.patches:
                file = self.path / patch.path
                file.write_text(patch.apply(file.read_text()))
            yield
        finally:
            for path, text in originals.items():
                (self.path / path).write_text(text)

    def first_failure(self, tests: Sequence[str]) -> str | None:
        """
        Run tests one after another; return the first that fails or does not end, None if all pass.

        Args:
            tests: Paths of files from the checkout's root, or pytest's names of single tests.
        """
        for place in tests:
            try:
                ran = self._run(place)
            except subprocess.TimeoutExpired:
                return f"{place} does not end"
            if ran.returncode == FAILED:
                found = _FAILURE.search(ran.stdout)
                return found[1] if found else place
            if ran.returncode:
                sys.exit(f"pytest {place} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
        return None

    def failures(self, tests: Sequence[str]) -> list[str]:
        """Run tests together, and return all that fail."""
        if not tests:
            return []
        ran = self._run(*tests, "--maxfail=0")
        if ran.returncode not in (0, FAILED):
            sys.exit(f"pytest ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
        return _FAILURE.findall(ran.stdout)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def copy(target: Path, **environment: str) -> Checkout:
    """
    Copy the checkout into a new folder, and compile it.

    The bytecode has a hash of its source, by which Python notices each change. By default Python
    compares the source's size and its time in whole seconds. If a file changed twice within a
    second, Python could miss the later change.

    Args:
        environment: Variables for the tests, besides those of this process.
    """
    target.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=unwanted)
        else:
            shutil.copy(source, target / name)
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiling, "."], cwd=target, check=True)
    inherited = {name: text for name, text in os.environ.items() if name != WITHOUT_BYTECODE}
    # Each copy has its own folder for temporary files: a worker removes those of dead workers, so a
    # worker of another run could do what the removed guard no longer does.
    (temporary := target / "t").mkdir()
    # PYTHONPATH is for workers that tests start in other folders.
    fixed = {"PYTHONPATH": str(target), "TMPDIR": str(temporary), EVERY_CASE: "1"}
    return Checkout(target, {**inherited, **fixed, **environment})
