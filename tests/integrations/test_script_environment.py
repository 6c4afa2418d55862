"""Scripts of the checkout, started by a Python that has nothing installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ("bench", "chaos", "mutations", "sql")


@pytest.fixture(params=NAMES)
def script(request, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    shutil.copy(SCRIPTS.parent / "pyproject.toml", tmp_path)
    return tmp_path / "scripts" / request.param


def started_bare(script):
    return subprocess.run(
        [sys.executable, "-S", script, "--help"], capture_output=True, text=True, check=False
    )


def put_python(place, text):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def let_prepare(tmp_path, text):
    """Stand in for pip: what `prepare` of scripts/environment does."""
    (tmp_path / "scripts" / "environment").write_text(f"prepare() {{\n{text}\n}}\n")


def test_script_continues_in_the_venv_of_its_checkout(script, tmp_path):
    put_python(tmp_path / ".venv" / "bin" / "python", 'echo "$@"')

    ran = started_bare(script)

    assert ran.stdout == f"{script} --help\n"


def test_script_creates_a_missing_venv(script, tmp_path):
    put_python(tmp_path / "made", 'echo "$@"')
    let_prepare(tmp_path, 'mkdir -p .venv/bin; mv made .venv/bin/python; echo "prepared $1"')

    ran = started_bare(script)

    assert ran.stdout == f"prepared dev\n{script} --help\n"


def test_script_adds_the_test_tools_to_a_venv_without_them(script, tmp_path):
    put_python(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} -S "$@"')
    put_python(tmp_path / "complete", 'echo "$@"')
    let_prepare(tmp_path, 'mv complete .venv/bin/python; echo "prepared $1"')

    ran = started_bare(script)

    assert ran.stdout == f"prepared dev\n{script} --help\n"


def test_script_exits_with_the_code_of_pip_if_the_venv_cannot_be_created(script, tmp_path):
    let_prepare(tmp_path, 'echo "no network" >&2; return 3')

    ran = started_bare(script)

    assert (ran.returncode, ran.stderr) == (3, "no network\n")


def test_script_names_the_packages_that_a_prepared_venv_still_lacks(script, tmp_path):
    put_python(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} -S "$@"')
    let_prepare(tmp_path, "true")

    ran = started_bare(script)

    assert ran.returncode == 1
    assert ran.stderr.startswith(".venv lacks SQLAlchemy, alembic, ")
    assert ran.stderr.endswith("Remove .venv, and run this again.\n")
