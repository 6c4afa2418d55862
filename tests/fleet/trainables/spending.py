"""Functions that report costs, fail, or stop improving: for tests of limits, retries and rules."""

import time
from pathlib import Path

from studydb import TrialStopped


class NetworkError(ConnectionError):
    """A temporary failure."""


def paid(config, trial):
    """Report steps that cost 1 usd each, every one with a checkpoint, until stopped."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while True:
        step += 1
        time.sleep(0.02)
        trial.report({"loss": 1 / step, "usd": 1.0}, checkpoint={"step": step})


def flattens(config, trial):
    """Report values that are equal from step 2 on; wait after each step for its gate or "all"."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 20:
        step += 1
        trial.report({"loss": max(0.25, 1 / step**2)}, checkpoint={"step": step})
        while not _exists(config, f"gate-{step}") and not _exists(config, "gate-all"):
            time.sleep(0.02)


def second_fails_until_corrected(config, trial):
    """
    Report until the gate "all" is open, but fail in trial 1 while the gate "corrected" is closed.

    Trial 1 fails only after another trial has reported.
    """
    if trial.number == 1 and not _exists(config, "gate-corrected"):
        while not _exists(config, "reported"):
            time.sleep(0.02)
        raise ValueError("a typo")
    step = trial.start_step
    try:
        while not _exists(config, "gate-all"):
            step += 1
            trial.report({"loss": 1.0})
            (Path(config["folder"]) / "reported").touch()
            time.sleep(0.02)
    except TrialStopped:
        trial.report({}, checkpoint={"step": step})
    return {"loss": 0.5}


def fails_once(config, trial):
    """Fail in the first attempt."""
    if trial.attempt == 1:
        raise NetworkError("try again")
    return {"loss": config["x"]}


def _exists(config, name):
    return (Path(config["folder"]) / name).exists()
