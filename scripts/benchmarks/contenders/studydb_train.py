"""The trainable of the studydb contender, in a module that imports scikit-learn at the top."""

from typing import Any

from benchmarks.contenders.task import METRIC, epochs_of
from studydb.examples import digits

assert digits


def train(config: dict[str, Any], trial: Any) -> None:
    epochs = config.pop("epochs")
    for _, error in epochs_of(config, epochs):
        trial.report({METRIC: error})
