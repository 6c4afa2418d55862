"""Imports follow the floors that ARCHITECTURE.md draws."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_only_point_down():
    command = Path(sys.executable).with_name("lint-imports")

    linted = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_packages_other_than_db_never_ask_for_the_name_of_a_database():
    asks = re.compile(r"\.postgresql\b|get_backend_name|dialect\.name")
    files = (ROOT / "studydb").rglob("*.py")

    assert {path.parent.name for path in files if asks.search(path.read_text())} == {"db"}
