"""Trainables that record when they run (by the host's monotonic clock) or what devices they see."""

import json
import os
import time
from pathlib import Path

import studydb

TICK_S = 0.05


def train(config, trial):
    """Run for `config["seconds"]`; write a line at the start, and then about every 50 ms."""
    mark = os.environ["FLEET_MARK"]
    path = Path(config["folder"], "held", f"{mark}-{os.getpid()}")
    with path.open("a", buffering=1) as file:
        end_s = time.monotonic() + config["seconds"]
        while time.monotonic() < end_s:
            line = {"trial": trial.number, "asked": config["asked"], "at": time.monotonic()}
            file.write(json.dumps(line) + "\n")
            time.sleep(min(TICK_S, config["seconds"] / 4))
    trial.report({"loss": 1.0})


def look(config):
    """Write which devices this trial sees, wait for the file `gate-1`, and report."""
    folder = Path(config["folder"])
    with (folder / "seen").open("a") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "unset") + "\n")
    while not (folder / "gate-1").exists():
        time.sleep(0.02)
    studydb.report({"loss": 1.0})
