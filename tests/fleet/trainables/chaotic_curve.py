"""
The curve that the trainables of crash tests report, and their record of acknowledged steps.

This module imports only the standard library, because `chaotic_command.py` starts often.
"""

import math
import os
import subprocess
from pathlib import Path

CHECKPOINT_EVERY = 4
FLUSH_EVERY = 3
"""Numbers of steps; a flush and a checkpoint are at the same step only at every twelfth step."""

UNDEFINED_FROM = 0.95
"""If x is larger than this, every second loss is NaN. NaN is legal, and schedulers judge it."""


def loss(x: float, step: int) -> float:
    """The value at a step; curves cross, and rounding to two decimals makes ties."""
    if x > UNDEFINED_FROM and step % 2 == 0:
        return math.nan
    return round(x * x + 1.0 / step + 0.2 * math.sin(7.0 * x * step), 2)


def metrics(x: float, step: int) -> dict[str, float]:
    value = loss(x, step)
    return {"loss": value, "double": 2 * value}


class Journal:
    """A file of one attempt with a line for each step that the worker has acknowledged."""

    def __init__(self, directory: str, number: int, attempt: int) -> None:
        self._path = Path(directory, f"{number}-{attempt}")
        self._path.touch()

    def acknowledge(self, step: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{step}\n")
            file.flush()
            os.fsync(file.fileno())


def start_bystander(number: int) -> None:
    """If number % 3 is 1, start a process in the trial's group; if it is 2, in a new session."""
    if number % 3:
        subprocess.Popen(["sleep", "600"], start_new_session=number % 3 == 2)
