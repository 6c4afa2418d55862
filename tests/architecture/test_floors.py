"""The drawing in ARCHITECTURE.md is what the imports are."""

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
