"""Functions that spend, fail or no longer improve, for tests of limits, retries and stop rules."""

import time
from pathlib import Path

from studydb import TrialStopped


class NetworkError(ConnectionError):
    """A failure that passes."""


def paid(config, trial):
    """Report steps that cost 1 usd each, every one with a checkpoint, until stopped."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while True:
        step += 1
        time.sleep(0.02)
        trial.report({"loss": 1 / step, "usd": 1.0}, checkpoint={"step": step})


def flattens(config, trial):
    """Report values that are alike from step 3 on; wait after each step for its gate."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 20:
        step += 1
        trial.report({"loss": max(0.25, 1 / step**2)}, checkpoint={"step": step})
        while not _exists(config, f"gate-{step}") and not _exists(config, "gate-all"):
            time.sleep(0.02)


def second_fails_until_corrected(config, trial):
    """Trial 1 fails once trial 0 has reported; trial 0 ends when the gate of all is open."""
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
    """The first attempt fails by an error that passes."""
    if trial.attempt == 1:
        raise NetworkError("try again")
    return {"loss": config["x"]}


def _exists(config, name):
    return (Path(config["folder"]) / name).exists()
