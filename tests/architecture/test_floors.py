"""Imports follow the floors that ARCHITECTURE.md draws."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_modules_import_only_modules_of_lower_floors():
    command = Path(sys.executable).with_name("lint-imports")

    linted = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_only_the_db_package_distinguishes_sqlite_from_postgresql():
    asks = re.compile(r"\.postgresql\b|get_backend_name|dialect\.name")
    files = (ROOT / "studydb").rglob("*.py")

    assert {path.parent.name for path in files if asks.search(path.read_text())} == {"db"}
