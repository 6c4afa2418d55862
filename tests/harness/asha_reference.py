"""
Asynchronous successive halving at one rung, by a list and numpy, without the package's code.

A reward is a value turned so that higher is better. The rule is Ray Tune's: a trial stops if its
reward is below the interpolated percentile of the rung's earlier rewards, and continues if all
earlier rewards are NaN or there are none. Unlike in Ray Tune, NaN stops a trial.
"""

from collections.abc import Sequence

import numpy as np


def decisions(
    values: Sequence[float], mode: str, reduction_factor: float
) -> list[tuple[bool, float | None]]:
    """For each value, in order of arrival at a rung: whether the trial stops, and the cutoff."""
    recorded: list[float] = []
    decided = []
    for value in values:
        reward = value if mode == "max" else -value
        limit = cutoff(recorded, reduction_factor)
        stops = bool(np.isnan(reward) or (limit is not None and reward < limit))
        decided.append((stops, limit))
        recorded.append(reward)
    return decided


def cutoff(rewards: Sequence[float], reduction_factor: float) -> float | None:
    """The percentile that a reward must reach; None if all rewards are NaN, or there are none."""
    if np.isnan(rewards).all():  # also True for an empty list
        return None
    with np.errstate(all="ignore"):
        return float(np.nanpercentile(rewards, (1 - 1 / reduction_factor) * 100))
