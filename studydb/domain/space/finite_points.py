"""The points of a finite space, in an order that depends on a seed."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studydb.domain.space.search_space import Space


@dataclass(frozen=True)
class FinitePoints:
    """
    All points of a space whose parameters have finitely many values; made by `finite_points`.

    Attributes:
        axes: The distinct values of each parameter, by path.
    """

    space: Space
    axes: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """The number of points; a space without parameters has 1."""
        return math.prod(map(len, self.axes.values()))

    def at(self, index: int) -> dict[str, Any]:
        """Return the nested params of the point at a 0-based index."""
        values = {}
        for path, axis in self.axes.items():
            index, place = divmod(index, len(axis))
            values[path] = axis[place]
        return self.space.nest(values)

    def in_order_of(self, seed: int) -> Iterator[dict[str, Any]]:
        """
        Yield each point once, in an order that depends on the seed.

        Points are made one by one. If a study has n points, and the space has more, then one of the
        first n + 1 points is new to the study, so a caller that needs a new point can stop early.
        """
        size = self.size
        digest = hashlib.sha256(f"{seed}/order of points".encode()).digest()
        start, stride = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
        while math.gcd(stride, size) != 1:  # a common factor would leave out points
            stride += 1
        for count in range(size):
            yield self.at((start + count * stride) % size)


def finite_points(space: Space) -> FinitePoints | None:
    """Return the points of a space; None if a parameter has floats without a step."""
    axes = {}
    for path, domain in space.parameters.items():
        values = domain.distinct
        if values is None:
            return None
        axes[path] = values
    return FinitePoints(space, axes)
