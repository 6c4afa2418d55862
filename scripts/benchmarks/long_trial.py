"""A trainable that reports ten metrics at each step."""

from typing import Any

METRICS = 10


def train(config: dict[str, Any], trial: Any) -> None:
    for step in range(1, config["steps"] + 1):
        trial.report({f"metric_{number}": step + number for number in range(METRICS)})
