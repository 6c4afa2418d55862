"""Trainables that report, wait for gates, set signal handlers, or describe their process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from studydb import TrialStopped

PATIENCE_S = 60.0


def one_step(config):
    return {"loss": config["x"]}


def hundred_steps(config, trial):
    """Report 100 steps; a test chooses `step_s` so that the steps outlast the test's outage."""
    for step in range(1, 101):
        time.sleep(config["step_s"])
        trial.report({"loss": 1 / step})


def gated(config, trial):
    """Report `n_steps` (default 4) steps with checkpoints; after each, wait for the step's gate."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    weights = bytes(config.get("size_bytes", 0))
    while step < config.get("n_steps", 4):
        step += 1
        trial.report({"loss": 1 / step}, checkpoint={"step": step, "weights": weights})
        _pass(Path(config["folder"]), step)


def unhurried(config, trial):
    """Report without checkpoints until the gate "all" opens; save a checkpoint when stopped."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    try:
        while not (Path(config["folder"]) / "gate-all").exists():
            time.sleep(0.02)
            trial.report({"loss": 1 / (step + 1)})
            step += 1
    except TrialStopped:
        trial.report({}, checkpoint={"step": step})


def slow(config, trial):
    """At steps 1 and 2, touch `began-STEP`, await the step's gate, and report with a checkpoint."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 2:
        step += 1
        (Path(config["folder"]) / f"began-{step}").touch()
        _pass(Path(config["folder"]), step)
        trial.report({"loss": 1 / step}, checkpoint={"step": step})


def ignores_sigterm(config, trial):
    """Ignore SIGTERM and SIGHUP, report once, and sleep."""
    _sleep_with_handler(signal.SIG_IGN, config, trial)


def handles_sigterm(config, trial):
    """
    Report once, and do what `at_sigterm` says at SIGTERM: return, exit, or report further.

    If it says "ignore", ignore SIGTERM, and return when the gate "all" is open.
    """
    signals, then = [], config["at_sigterm"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if then == "exit" else signals.append(1))
    try:
        trial.report({"loss": 1.0})
        if then == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _pass(Path(config["folder"]), 1)
            return
        while not signals or then == "report":
            time.sleep(0.02)
            if then == "report":
                trial.report({"loss": 1.0})
    except TrialStopped:
        trial.save({"weights": 1})


def needs_a_helper(config, trial):
    """Ignore SIGTERM, start a process whose id is in the file `helper`, and fail when it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen(["env", "--default-signal=TERM", "sleep", "600"])
    (Path(config["folder"]) / "helper").write_text(str(helper.pid))
    raise RuntimeError(f"The helper has ended with {helper.wait()}.")


def resets_signal_handlers(config, trial):
    """Let SIGTERM and SIGHUP end the process, report once, and sleep."""
    _sleep_with_handler(signal.SIG_DFL, config, trial)


def _sleep_with_handler(handler, config, trial):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
    trial.report({"loss": 1.0})
    trial.flush()
    (Path(config["folder"]) / "ready").touch()
    time.sleep(PATIENCE_S)


def inspected(config):
    """
    Write this process's environment, command, modules and open files to facts.json.

    The environment with which the process began is written, too, and so are the open files of the
    parent process.
    """
    facts = {
        "environment": dict(os.environ),
        "began with": Path("/proc/self/environ").read_bytes().decode(errors="replace"),
        "command": Path("/proc/self/cmdline").read_bytes().decode(errors="replace"),
        "open here": _descriptors("self"),
        "open in the fork server": _descriptors(os.getppid()),
        "modules": sorted(sys.modules),
        "main": sys.modules["__main__"].__name__,
    }
    (Path(config["folder"]) / "facts.json").write_text(json.dumps(facts))
    return 0.0


def _descriptors(pid):
    folder = Path(f"/proc/{pid}/fd")
    found = {}
    for entry in folder.iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor that lists the folder
            continue
    return found


def _pass(folder, step):
    deadline_s = time.monotonic() + PATIENCE_S
    while not any((folder / f"gate-{name}").exists() for name in (step, "all")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the gate of step {step} stayed closed")
        time.sleep(0.01)
