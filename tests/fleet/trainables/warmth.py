"""Trainables whose processes die: in the first two attempts, or in every fork of a template."""

import os
import signal
import time
from pathlib import Path

IMPORTED_BY = os.getpid()


def dies_twice(config):
    """Kill this process in the first two attempts, as Linux does when memory runs out."""
    deaths = Path(config["folder"]) / "deaths"
    n_deaths = int(deaths.read_text()) if deaths.exists() else 0
    deaths.write_text(str(n_deaths + 1))
    if n_deaths < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(5.0)  # so that the test sees the study while the trial runs
    return {"loss": config["x"]}


def dies_in_a_fork(config):
    """Kill this process if a template forked it, as if a library did not survive the fork."""
    if os.getpid() != IMPORTED_BY:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": config["x"]}
