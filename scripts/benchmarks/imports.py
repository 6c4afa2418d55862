"""A trainable that reports the time of its call, in a module that imports scikit-learn."""

import time
from typing import Any

import sklearn.datasets
import sklearn.model_selection
import sklearn.neural_network

assert sklearn.neural_network
assert sklearn.model_selection
assert sklearn.datasets


def train(_config: dict[str, Any]) -> dict[str, float]:
    """Report the time of the call by the host's clock, which PostgreSQL on this host uses, too."""
    return {"loss": 0.0, "called_s": time.time()}
