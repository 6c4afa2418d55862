"""Lets a script go on in the checkout's own environment, whichever Python it was started by."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def enter(*needed: str) -> Path:
    """
    Go on in the checkout's own environment when this Python lacks a module that is needed.

    Returns:
        The checkout.

    Raises:
        SystemExit: There is none; the message says how to make it.
    """
    if not all(find_spec(name) for name in needed):
        python = ROOT / ".venv" / "bin" / "python"
        if not python.exists() or Path(sys.prefix) == ROOT / ".venv":
            sys.exit("This needs studydb's own environment. Run scripts/test once: it makes it.")
        os.execv(python, [str(python), *sys.argv])
    return ROOT
