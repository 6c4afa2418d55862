"""A trainable, and functions that compute a trial's request for resources from its config."""

import os
import sys
import time
from pathlib import Path


def work(config):
    return config["size"]


def licences(config):
    return {"licence": config["size"]}


def wrong(config):
    """
    From `size` 3 on, fail or answer wrongly as `how` says, until the file "corrected" exists.

    If `how` is "shapes", the answers are valid, but each size asks for a different amount.
    """
    if config["size"] < 3 or (Path(config["folder"]) / "corrected").exists():
        return {"licence": 1}
    if config["how"] in ANSWERS:
        return ANSWERS[config["how"]]
    if config["how"] == "shapes":
        return {"licence": config["size"] / 1000}
    return WAYS[config["how"]]()


def fail():
    raise ValueError("no such size")


ANSWERS = {
    "less than nothing": {"licence": -1},
    "None": None,
    "a word": "much",
    "one GPU and a half": {"gpus": 1.5},
}
WAYS = {
    "raises": fail,
    "dies": lambda: os._exit(1),
    "exits": lambda: sys.exit(3),
    "hangs": lambda: time.sleep(60),
}
