"""A trainable for crash tests: it reports a known curve, and records the acknowledged steps."""

import math
import os
import subprocess
import time
from pathlib import Path

CHECKPOINT_EVERY = 4
FLUSH_EVERY = 3
"""In steps. Neither number is a multiple of the other, so most flushes are not at a checkpoint."""

UNDEFINED_FROM = 0.95
"""For larger x, every second value is NaN, which is legal and is judged."""


def loss(x: float, step: int) -> float:
    """The value at a step; curves cross, and rounding to two decimals makes ties."""
    if x > UNDEFINED_FROM and step % 2 == 0:
        return math.nan
    return round(x * x + 1.0 / step + 0.2 * math.sin(7.0 * x * step), 2)


def train(config, trial):
    """
    Report a known curve, with a checkpoint every 4 steps and a flush every 3.

    After each report with a checkpoint and each flush, the step is appended to a file of this
    attempt, and synced. So the worker has acknowledged the results of all steps in the file.
    """
    start = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    journal = Path(config["journal"]) / f"{trial.number}-{trial.attempt}"
    _start_bystander(trial.number)
    with journal.open("a") as acknowledged:
        for step in range(start + 1, config["steps"] + 1):
            time.sleep(config["step_s"])
            value = loss(config["x"], step)
            keeps = step % CHECKPOINT_EVERY == 0
            trial.report(
                {"loss": value, "double": 2 * value}, checkpoint={"step": step} if keeps else None
            )
            if step % FLUSH_EVERY == 0:
                trial.flush()
            if keeps or step % FLUSH_EVERY == 0:
                acknowledged.write(f"{step}\n")
                acknowledged.flush()
                os.fsync(acknowledged.fileno())


def _start_bystander(number: int) -> None:
    """Start a process in the trial's group if `number` % 3 is 1, in a new session if it is 2."""
    if number % 3:
        subprocess.Popen(["sleep", "600"], start_new_session=number % 3 == 2)
