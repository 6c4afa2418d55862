"""Well-behaved trainables, for tests of workers."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from studydb import TrialStopped

PATIENCE_S = 60.0


def one_step(config):
    """Return the only value."""
    return {"loss": config["x"]}


def hundred_steps(config, trial):
    """Report for as long as an outage lasts."""
    for step in range(1, 101):
        time.sleep(config["step_s"])
        trial.report({"loss": 1 / step})


def gated(config, trial):
    """Report four steps with a checkpoint each; continue after each when its gate is open."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 4:
        step += 1
        trial.report({"loss": 1 / step}, checkpoint={"step": step})
        _pass(Path(config["folder"]), step)


def unhurried(config, trial):
    """Report all the time without a checkpoint; save one when told to stop."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    try:
        while not (Path(config["folder"]) / "gate-all").exists():
            time.sleep(0.02)
            trial.report({"loss": 1 / (step + 1)})
            step += 1
    except TrialStopped:
        trial.report({}, checkpoint={"step": step})


def heavy(config, trial):
    """Save what no row of a database takes."""
    for step in range(1, 3):
        trial.report({"loss": 1 / step}, checkpoint={"weights": bytes(17 << 20)})


def burdened(config, trial):
    """Save what no row of a database takes; continue after a step when its gate is open."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 2:
        step += 1
        trial.report({"loss": 1 / step}, checkpoint={"step": step, "weights": bytes(17 << 20)})
        _pass(Path(config["folder"]), step)


def slow(config, trial):
    """Begin a step, say so, and end it when its gate is open; a checkpoint with each."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 2:
        step += 1
        (Path(config["folder"]) / f"began-{step}").touch()
        _pass(Path(config["folder"]), step)
        trial.report({"loss": 1 / step}, checkpoint={"step": step})


def stubborn(config, trial):
    """Report once, then hear no signal and report no more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trial.report({"loss": 1.0})
    trial.flush()
    (Path(config["folder"]) / f"stubborn-{trial.number}").touch()
    time.sleep(PATIENCE_S)


def deaf(config, trial):
    """Report once, then let signals do what they do by default, and report no more."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    trial.report({"loss": 1.0})
    trial.flush()
    (Path(config["folder"]) / f"deaf-{trial.number}").touch()
    time.sleep(PATIENCE_S)


def inspected(config):
    """Tell what this process knows, has open and has loaded."""
    told = {
        "environment": dict(os.environ),
        "began with": Path("/proc/self/environ").read_bytes().decode(errors="replace"),
        "command": Path("/proc/self/cmdline").read_bytes().decode(errors="replace"),
        "open here": _descriptors("self"),
        "open in the fork server": _descriptors(os.getppid()),
        "modules": sorted(sys.modules),
        "main": sys.modules["__main__"].__name__,
    }
    (Path(config["folder"]) / "told.json").write_text(json.dumps(told))
    return 0.0


def _descriptors(pid):
    folder = Path(f"/proc/{pid}/fd")
    found = {}
    for entry in folder.iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the one that lists the folder
            continue
    return found


def _pass(folder, step):
    deadline_s = time.monotonic() + PATIENCE_S
    while not any((folder / f"gate-{name}").exists() for name in (step, "all")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the gate of step {step} stayed closed")
        time.sleep(0.01)
