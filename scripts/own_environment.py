"""Restarts a script in the checkout's own environment, if another Python has started it."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

try:
    import tomllib
except ImportError:  # this Python is too old for studydb; .venv has another
    tomllib = None

ROOT = Path(__file__).resolve().parents[1]

STARTED = "STUDYDB_SCRIPT_STARTED"
"""Set when a script has restarted itself, to the environment that it found or made."""


def enter() -> Path:
    """
    Continue in the checkout's own environment, unless this Python has what studydb[dev] installs.

    The environment is made if it is missing; that of scripts/quickstart gets the test tools.

    Returns:
        The checkout.

    Raises:
        SystemExit: The environment cannot be made; pip's message says why.
    """
    started = os.environ.pop(STARTED, "")
    lacking = _lacking()
    if lacking:
        _start_again(started, lacking)
    return ROOT


def _lacking() -> list[str]:
    """The requirements of studydb[dev] that this Python lacks."""
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
        sys.exit(f".venv lacks {', '.join(lacking)} even now. Remove .venv, and run this again.")
    is_own = started == "found" or Path(sys.prefix) == ROOT / ".venv"
    if is_own or not python.exists():
        _make()
        started = "made"
    os.environ[STARTED] = started or "found"
    os.execv(python, [str(python), *sys.argv])


def _make() -> None:
    command = "set -euo pipefail; . scripts/environment; prepare dev"
    made = subprocess.run(["bash", "-c", command, sys.argv[0]], cwd=ROOT, check=False)
    if made.returncode:
        sys.exit(made.returncode)
