"""Scripts of the checkout, started by a Python that has nothing installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ("bench", "chaos", "mutations")


@pytest.fixture(params=NAMES)
def script(request, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    return tmp_path / "scripts" / request.param


def started_bare(script):
    return subprocess.run(
        [sys.executable, "-S", script, "--help"], capture_output=True, text=True, check=False
    )


def test_script_without_the_checkouts_environment_says_how_to_make_it(script):
    ran = started_bare(script)

    assert ran.returncode == 1
    assert ran.stderr == (
        "This needs studydb's own environment. Run scripts/test once: it makes it.\n"
    )


def test_script_goes_on_in_the_checkouts_environment(script, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    ran = started_bare(script)

    assert ran.stdout == f"{script} --help\n"
