"""The trainables of the benchmark of checkpoints."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

NOTHING, OURS, LIBRARY = "nothing", "studydb", "library"
"""What saves in the training loop."""


def train(config: dict[str, Any], trial: Any) -> None:
    """Train steps of equal work, each with a save; report the seconds of all steps together."""
    source, saver = Path(config["source"]), str(config["saver"])
    matrix = np.random.default_rng(0).random((256, 256))
    _save(saver, trial, 0, source, config["target"])  # connects, and is not timed
    trial.flush()
    began_s = time.perf_counter()
    for step in range(1, config["steps"] + 1):
        for _ in range(config["products"]):
            matrix @ matrix
        _save(saver, trial, step, source, config["target"])
    took_s = time.perf_counter() - began_s
    trial.report({"error": 0.0, "took_s": took_s, "training_iteration": config["steps"] + 2})


def _save(saver: str, trial: Any, step: int, source: Path, target: str) -> None:
    if saver == OURS:
        trial.report({"error": 1.0, "training_iteration": step + 1}, checkpoint=source)
        return
    if saver == LIBRARY:
        import fsspec  # noqa: PLC0415  the other contenders do not need it

        files, path = fsspec.core.url_to_fs(f"{target}/{trial.number}")
        files.put(str(source), path, recursive=True)
    trial.report({"error": 1.0, "training_iteration": step + 1})


def save_and_die(config: dict[str, Any], trial: Any) -> None:
    """Save a directory and die, after waits in which the memory is measured; then restore it."""
    folder = Path(config["folder"])
    if trial.checkpoint is None:
        _mark(folder, "before")
        trial.report({"error": 1.0}, checkpoint=Path(config["source"]))
        trial.flush()
        _mark(folder, "saved")
        os.kill(os.getpid(), signal.SIGKILL)
    assert sum(1 for _ in trial.checkpoint.path.iterdir()) == config["files"]
    _mark(folder, "restored")
    trial.report({"error": 0.0})


def _mark(folder: Path, name: str) -> None:
    """Make a file, and wait until the benchmark has removed it."""
    (folder / name).touch()
    while (folder / name).exists():
        time.sleep(0.01)
