"""Trainables whose processes tell a copy of a template from one that imported them itself."""

import os
import signal

IMPORTED_BY = os.getpid()


def dies_unless_it_has_imported_itself(config):
    """As with a library that does not survive a fork."""
    if os.getpid() != IMPORTED_BY:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": config["x"]}
