"""
Random search: every parameter is drawn independently of the others.

Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization" (JMLR 2012).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from studydb.domain.life.states import Origin
from studydb.domain.space.search_space import Space
from studydb.domain.specs.spec import suggesting_options
from studydb.searchers.draws import unit_draw
from studydb.searchers.seeded import Seeded


@suggesting_options
@dataclass(frozen=True)
class RandomSearch(Seeded):
    """
    Propose any number of independent random points; each is {} if the space has no parameters.

    Studies with equal seeds and equal spaces get the same points.
    """

    origin: ClassVar[Origin] = Origin.SEARCHER

    def size(self, space: Space) -> int | None:  # noqa: ARG002
        return None

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """
        Return the `draw`-th point (0-based), the same in every process.

        Args:
            seed: The seed stored with the study, not `self.seed`.
        """
        return space.nest(
            {
                path: domain.from_unit(unit_draw(seed=seed, path=path, draw=draw))
                for path, domain in space.parameters.items()
            }
        )
