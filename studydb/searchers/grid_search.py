"""Grid search: propose every combination of the parameters' values once."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Origin
from studydb.domain.space.domains import Enumerable
from studydb.domain.space.search_space import Space
from studydb.domain.specs.spec import suggesting_options
from studydb.searchers.seeded import Seeded

MAX_VALUES = 100_000
"""The largest number of values that one parameter may have."""

MAX_POINTS = 10**9


@suggesting_options
@dataclass(frozen=True)
class GridSearch(Seeded):
    """
    Propose every combination of values once; a value that `choice` lists twice counts twice.

    The space may have `choice`, `randint` and `quniform`; other distributions are refused. The
    points come in the order of nested loops over the space: the last parameter changes fastest. The
    seed changes `trial.seed`, but not the points. In Ray Tune this searcher is `grid_search`;
    Optuna's `GridSampler` shuffles the points.
    """

    origin: ClassVar[Origin] = Origin.GRID

    def size(self, space: Space) -> int:
        """
        Count the combinations; a space without parameters has 1.

        Raises:
            InvalidSpec: A parameter cannot be enumerated, or there are too many combinations.
        """
        points = math.prod(domain.size for domain in _enumerable_parameters(space).values())
        if points > MAX_POINTS:
            raise InvalidSpec(
                f"The grid has {points:,} points, more than {MAX_POINTS:,}; use RandomSearch, or "
                "fewer values."
            )
        return points

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:  # noqa: ARG002
        """
        Return the `draw`-th combination (0-based); the seed has no effect.

        Raises:
            IndexError: `draw` is not below the number of combinations.
            InvalidSpec: A parameter cannot be enumerated.
        """
        axes = _enumerable_parameters(space)
        rest, values = draw, {}
        for path, domain in reversed(axes.items()):
            rest, index = divmod(rest, domain.size)
            values[path] = domain.at(index)
        if rest != 0:
            raise IndexError(
                f"The grid has no point {draw}; it has {self.size(space)}, numbered from 0."
            )
        return space.nest(values)


def _enumerable_parameters(space: Space) -> dict[str, Enumerable]:
    axes: dict[str, Enumerable] = {}
    for path, domain in space.parameters.items():
        if not isinstance(domain, Enumerable):
            raise InvalidSpec(
                f"A grid cannot enumerate {path!r}, which is {domain}; "
                "list its values with choice([…]), or use quniform or randint."
            )
        if domain.size > MAX_VALUES:
            raise InvalidSpec(
                f"A grid cannot enumerate the {domain.size:,} values of {path!r}; "
                f"list at most {MAX_VALUES:,} with choice([…])."
            )
        axes[path] = domain
    return axes
