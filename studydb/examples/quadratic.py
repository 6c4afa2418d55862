"""The smallest useful trainable: descend a parabola. It needs only Python."""

from typing import Any

STEPS = 9
LOWEST_AT = 3.0


def train(config: dict[str, Any], trial: Any) -> None:
    """
    Descend from `x` at `rate` for 9 steps, and report `loss`, the squared distance to 3.

    Args:
        config: `x` (the start, any number) and `rate` (0 to 1; at a larger rate the loss rises).
        trial: The running trial; the descent continues from its checkpoint, if there is one.
    """
    x, step = config["x"], 0
    if trial.checkpoint is not None:
        x, step = trial.checkpoint.to_dict()["x"], trial.checkpoint.step

    for _ in range(step, STEPS):
        slope = 2 * (x - LOWEST_AT)
        x -= config["rate"] * slope
        trial.report({"loss": (x - LOWEST_AT) ** 2}, checkpoint={"x": x})
