"""
A script of `scripts/` whose Python lacks packages continues in the venv of its checkout.

The script first creates a missing venv, and installs the packages that the venv lacks.
"""

import shutil
import sys
from pathlib import Path

import pytest
from harness.commands import run_command

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ("bench", "chaos", "mutations", "sql")


@pytest.fixture(params=NAMES)
def script(request, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    shutil.copy(SCRIPTS.parent / "pyproject.toml", tmp_path)
    return tmp_path / "scripts" / request.param


def run_without_packages(script):
    return run_command([sys.executable, "-S", script, "--help"])


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def replace_prepare(tmp_path, text):
    """Replace the function `prepare` of scripts/environment; the real function would run pip."""
    (tmp_path / "scripts" / "environment").write_text(f"prepare() {{\n{text}\n}}\n")


def test_script_continues_in_the_venv_of_its_checkout(script, tmp_path):
    write_program(tmp_path / ".venv" / "bin" / "python", 'echo "$@"')

    ran = run_without_packages(script)

    assert ran.stdout == f"{script} --help\n"


def test_script_creates_a_missing_venv(script, tmp_path):
    write_program(tmp_path / "made", 'echo "$@"')
    replace_prepare(tmp_path, 'mkdir -p .venv/bin; mv made .venv/bin/python; echo "prepared $1"')

    ran = run_without_packages(script)

    assert ran.stdout == f"prepared dev\n{script} --help\n"


def test_script_adds_the_test_tools_to_a_venv_without_them(script, tmp_path):
    write_program(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} -S "$@"')
    write_program(tmp_path / "complete", 'echo "$@"')
    replace_prepare(tmp_path, 'mv complete .venv/bin/python; echo "prepared $1"')

    ran = run_without_packages(script)

    assert ran.stdout == f"prepared dev\n{script} --help\n"


def test_script_exits_with_the_code_of_pip_if_the_venv_cannot_be_created(script, tmp_path):
    replace_prepare(tmp_path, 'echo "no network" >&2; return 3')

    ran = run_without_packages(script)

    assert (ran.returncode, ran.stderr) == (3, "no network\n")


def test_script_names_the_packages_that_a_prepared_venv_still_lacks(script, tmp_path):
    write_program(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} -S "$@"')
    replace_prepare(tmp_path, "true")

    ran = run_without_packages(script)

    assert ran.returncode == 1
    assert ran.stderr.startswith(".venv still lacks SQLAlchemy, alembic, ")
    assert ran.stderr.endswith("Remove .venv, and run the script again.\n")
