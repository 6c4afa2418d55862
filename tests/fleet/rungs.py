"""
Asynchronous halving once more, independent of the package: a list per rung and numpy's percentile.

The rule is Ray Tune's: a reward is held against the interpolated percentile of all that came before
it, and the first arrival goes on. NaN, which Ray's rule would let go on, stops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Arrival:
    """One judged value: `ordinal` is the order in which the database recorded it."""

    trial_id: int
    ordinal: int
    step: int
    value: float
    stopped: bool


def decisions(values: Sequence[float], mode: str, reduction_factor: float) -> list[bool]:
    """Whether each of the values, as they arrived at one rung, is stopped."""
    recorded: list[float] = []
    stops = []
    for value in values:
        reward = value if mode == "max" else -value
        stops.append(bool(np.isnan(reward) or reward < _cutoff(recorded, reduction_factor)))
        recorded.append(reward)
    return stops


def _cutoff(recorded: Sequence[float], reduction_factor: float) -> float:
    if np.isnan(recorded).all():  # true of none, too
        return -np.inf
    return float(np.nanpercentile(recorded, (1 - 1 / reduction_factor) * 100))
