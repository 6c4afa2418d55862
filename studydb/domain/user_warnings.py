"""Warnings that name the line of the user's code."""

import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}/"


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn; the warning names the line outside studydb that called studydb."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001  inspect.stack() reads source files
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
