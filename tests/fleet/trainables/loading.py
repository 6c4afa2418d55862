"""Trainables that unpickle a checkpoint, write a text to a file, or print escape sequences."""

import pickle
import sys
from pathlib import Path


def unpickling(config, trial):
    if trial.checkpoint is not None:
        model = pickle.loads((trial.checkpoint.path / "model").read_bytes())
        return {"loss": model["loss"]}
    folder = Path(config["folder"]) / "model"
    folder.mkdir(exist_ok=True)
    (folder / "model").write_bytes(pickle.dumps({"loss": 0.125}))
    trial.report({"loss": 1.0}, checkpoint=folder)
    raise RuntimeError("the next attempt restores the checkpoint")


def commanding(config):
    (Path(config["folder"]) / "ran").write_text(config["command"])
    return {"loss": config["x"]}


STEER = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\u202e"


def steering(config):
    """Print `STEER` and other escape sequences; raise an error whose message is `STEER`."""
    sys.stdout.write(f"{STEER}\n\x1b[31mred\x1b[0m and\ttabs, é\n")
    raise ValueError(STEER)
