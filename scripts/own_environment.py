"""Restarts a script in the checkout's .venv if the present Python lacks what the script needs."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

try:
    import tomllib
except ImportError:  # Python 3.10 or older; .venv has a newer Python
    tomllib = None

ROOT = Path(__file__).resolve().parents[1]

STARTED = "STUDYDB_SCRIPT_STARTED"
"""
An environment variable that a script sets before it restarts itself: "made" if the script has made
or updated .venv, else "found".
"""


def enter() -> Path:
    """
    Continue in the checkout's .venv if this Python lacks a requirement of studydb[dev].

    Makes .venv if it is missing. If scripts/quickstart has made .venv, adds the test tools.

    Returns:
        The root of the checkout.

    Raises:
        SystemExit: .venv cannot be made, or still lacks a requirement; a message says why.
    """
    started = os.environ.pop(STARTED, "")
    lacking = _lacking()
    if lacking:
        _start_again(started, lacking)
    return ROOT


def _lacking() -> list[str]:
    if tomllib is None:
        return ["Python 3.11"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = [re.split(r"[^\w.-]", text)[0] for text in needed]
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _start_again(started: str, lacking: list[str]) -> NoReturn:
    python = ROOT / ".venv" / "bin" / "python"
    if started == "made":
        sys.exit(f".venv still lacks {', '.join(lacking)}. Remove .venv, and run the script again.")
    runs_in_venv = started == "found" or Path(sys.prefix) == ROOT / ".venv"
    if runs_in_venv or not python.exists():
        _make()
        started = "made"
    os.environ[STARTED] = started or "found"
    os.execv(python, [str(python), *sys.argv])


def _make() -> None:
    command = "set -euo pipefail; . scripts/environment; prepare dev"
    made = subprocess.run(["bash", "-c", command, sys.argv[0]], cwd=ROOT, check=False)
    if made.returncode:
        sys.exit(made.returncode)
