"""A trainable that saves a checkpoint at each step; the curves of the trials differ."""

import os
from pathlib import Path


def saved_curve(config, trial):
    """Write a line for each step that is trained; trials with lower numbers are better."""
    done = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    log = Path(config["folder"], "trained")
    for step in range(done + 1, 100):
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{trial.number} {step}\n".encode())
        os.close(descriptor)
        trial.report({"loss": trial.number + 1 / step}, checkpoint={"step": step})
