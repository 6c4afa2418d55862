"""Trainables whose processes tell a copy of a template from one that imported them itself."""

import os
import signal
import time
from pathlib import Path

IMPORTED_BY = os.getpid()


def dies_twice(config):
    """As with a limit of memory that is too low until it is raised."""
    deaths = Path(config["folder"]) / "deaths"
    n_deaths = int(deaths.read_text()) if deaths.exists() else 0
    deaths.write_text(str(n_deaths + 1))
    if n_deaths < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(5.0)  # longer than a look at the study takes to come
    return {"loss": config["x"]}


def dies_unless_it_has_imported_itself(config):
    """As with a library that does not survive a fork."""
    if os.getpid() != IMPORTED_BY:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": config["x"]}
