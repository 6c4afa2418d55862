"""A function that records which devices it has, and at which times of the monotonic clock."""

import fcntl
import json
import os
import time
from pathlib import Path

TICK_S = 0.02


def train(config):
    """
    Run for `config["seconds"]`; write a line at the start, every 20 ms, and at the end.

    Also lock a file for each device (shared, if the trial has a part of a device). If another trial
    holds a conflicting lock, write a line with `twice`.
    """
    folder, part = Path(os.environ["WITNESS_FOLDER"]), float(os.environ["WITNESS_PART"])
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    record = folder / "held" / f"{os.environ['FLEET_MARK']}-{os.getpid()}-{time.monotonic_ns()}"
    kind = fcntl.LOCK_EX if part == 1 else fcntl.LOCK_SH
    kept = [(folder / f"witness-{name[:6]}").open("a") for name in visible.split(",")]
    with record.open("a", buffering=1) as file:
        end_s = time.monotonic() + config["seconds"]
        for witness in kept:
            try:
                fcntl.flock(witness, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                note(file, visible=visible, part=part, twice=True)
        while time.monotonic() < end_s:
            note(file, visible=visible, part=part)
            time.sleep(TICK_S)
        note(file, visible=visible, part=part, ended=True)
    return 1.0


def note(file, **what):
    file.write(json.dumps({**what, "at": time.monotonic()}) + "\n")
