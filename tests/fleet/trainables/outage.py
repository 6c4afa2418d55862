"""A trainable that reports much while the database is away."""

import time
from pathlib import Path

PATIENCE_S = 900.0


def train(config, trial):
    """Report step 1; report all other steps when gate-away exists; return when gate-back exists."""
    folder = Path(config["folder"])
    trial.report({"loss": 1.0})
    trial.flush()
    _await(folder / "gate-away")
    for step in range(2, config["n_steps"] + 1):
        trial.report({"loss": 1 / step, "text": f"{step} " + "x" * config["size"]})
    (folder / "reported").touch()
    _await(folder / "gate-back")


def _await(gate):
    deadline_s = time.monotonic() + PATIENCE_S
    while not gate.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
