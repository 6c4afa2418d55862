"""The recorded curve whose params are nearest to those that a searcher proposes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studydb.analysis.recorded_curves import Curve
from studydb.domain.canonical import canonical_json
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.domains import Domain, Integer, LogRandInt, LogUniform, Real
from studydb.domain.space.search_space import Space


class NearestCurve:
    """
    Gives each trial the curve nearest to its params, among the curves that no other trial has.

    The distance is Euclidean in the unit cube: the bounds of each parameter are scaled to 0 and 1.
    In a logarithmic domain, the logarithms of value and bounds are used. Two different values of a
    `choice` differ by 1.
    """

    def __init__(self, space: Space, curves: Sequence[Curve]) -> None:
        """
        Place the curves in the space.

        Raises:
            InvalidSpec: A curve's params do not fit the space.
        """
        self._space, self._left = space, np.ones(len(curves), dtype=bool)
        params = [_flat(space, curve.params, number) for number, curve in enumerate(curves)]
        self._axes = {
            path: _Axis(domain, [one[path] for one in params])
            for path, domain in space.parameters.items()
        }

    def take(self, params: Mapping[str, Any]) -> int:
        """Take the nearest remaining curve, or the first of several nearest; return its index."""
        values = self._space.flatten(params)
        squares = sum(axis.differences(values[path]) ** 2 for path, axis in self._axes.items())
        index = int(np.argmin(np.where(self._left, squares, math.inf)))
        self._left[index] = False
        return index


class _Axis:
    """The recorded values of one parameter."""

    def __init__(self, domain: Domain, values: Sequence[Any]) -> None:
        self._domain = domain
        self._values = np.array([self._place(value) for value in values])

    def differences(self, value: Any) -> Any:
        place = self._place(value)
        if isinstance(place, str):
            return (self._values != place).astype(float)
        return self._values - place

    def _place(self, value: Any) -> float | str:
        domain = self._domain
        if not isinstance(domain, Real | Integer):
            return canonical_json(value)
        if isinstance(domain, LogUniform | LogRandInt):
            start = math.log(domain.lower)  # a quotient of values could overflow
            return (math.log(value) - start) / (math.log(domain.upper) - start)
        return float((value - domain.lower) / (domain.upper - domain.lower))


def _flat(space: Space, params: Mapping[str, Any], number: int) -> dict[str, Any]:
    misfit = space.misfit(params)
    if misfit is not None:
        raise InvalidSpec(f"The params of curve {number} do not fit the space: {misfit}")
    return space.flatten(params)
