"""The task in the benchmark `real`: train the digits network of studydb.examples, and time it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METRIC = "error"
SPACE = {
    "lr": ("loguniform", 1e-4, 1.0),
    "h": ("lograndint", 4, 256),
    "alpha": ("loguniform", 1e-6, 1.0),
    "bs": ("lograndint", 8, 256),
    "mom": ("uniform", 0.0, 0.99),
}


def read_task(path: str) -> dict[str, Any]:
    """Read the task: what every contender trains, and the folder for this contender's files."""
    task: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return task


def epochs_of(config: dict[str, Any], epochs: int) -> Iterator[tuple[int, float]]:
    """Train one configuration; yield the number of each epoch and the error after that epoch."""
    from studydb.examples import digits  # noqa: PLC0415  only processes that train import scikit-learn

    images, unseen_images, labels, unseen_labels = digits.load()
    network = digits.make_network(config)
    for epoch in range(1, epochs + 1):
        network.partial_fit(images, labels, classes=range(10))
        yield epoch, 1 - network.score(unseen_images, unseen_labels)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    times[name] = time.perf_counter() - began_s


def say(times: dict[str, float], *, trials: int, epochs: int, best: float) -> None:
    """Print the outcome as the last line, which real.py reads."""
    print(json.dumps({"times": times, "trials": trials, "epochs": epochs, "best": best}))
