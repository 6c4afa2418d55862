"""The trainable of a benchmark's workers: ten reports and nothing else."""

from typing import Any

from benchmarks.space import METRIC, REPORTS, loss


def train(config: dict[str, Any], trial: Any) -> None:
    for step in range(1, REPORTS + 1):
        trial.report({METRIC: loss(config["momentum"], step)})
