"""The trainables of `scripts/bench checkpoints`."""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

NOTHING, OURS, LIBRARY = "nothing", "studydb", "library"
"""What saves the checkpoints: nothing, studydb, or the library fsspec."""


def train(config: dict[str, Any], trial: Any) -> None:
    """Train steps of equal work, and save with `saver` after each; report the time of all steps."""
    source, saver = Path(config["source"]), str(config["saver"])
    matrix = np.random.default_rng(0).random((256, 256))
    uploads = _Uploads(f"{config['target']}/{trial.number}")
    _save(saver, trial, 0, source, uploads)  # the first save connects; it is not timed
    trial.flush()
    uploads.wait()
    began_s = time.perf_counter()
    for step in range(1, config["steps"] + 1):
        for _ in range(config["products"]):
            matrix @ matrix
        _save(saver, trial, step, source, uploads)
    took_s = time.perf_counter() - began_s
    uploads.wait()
    trial.report({"error": 0.0, "took_s": took_s, "training_iteration": config["steps"] + 2})


class _Uploads:
    """Sends directories with fsspec in a thread; like studydb, it sends one directory at a time."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._threads = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def send(self, source: Path) -> None:
        """Wait until the previous directory is sent; then begin to send this one."""
        self.wait()
        self._last = self._threads.submit(_put, source, self._target)

    def wait(self) -> None:
        """Wait until the last directory is sent."""
        if self._last is not None:
            self._last.result()


def _put(source: Path, target: str) -> None:
    import fsspec  # noqa: PLC0415  the other contenders do not need it

    files, path = fsspec.core.url_to_fs(target)
    files.put(str(source), path, recursive=True)


def _save(saver: str, trial: Any, step: int, source: Path, uploads: _Uploads) -> None:
    if saver == OURS:
        trial.report({"error": 1.0, "training_iteration": step + 1}, checkpoint=source)
        return
    if saver == LIBRARY:
        uploads.send(source)
    trial.report({"error": 1.0, "training_iteration": step + 1})


def save_and_die(config: dict[str, Any], trial: Any) -> None:
    """
    In the first attempt save a directory and die; in the second attempt restore the directory.

    The benchmark measures the peak memory of the worker's processes before the save, during the
    save, and from the end of the save to the end of the restore.
    """
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
