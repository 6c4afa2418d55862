"""
Random search: every parameter drawn on its own.

Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization" (JMLR 2012).
"""

from dataclasses import dataclass
from typing import Any

from studydb.domain.life.states import Origin
from studydb.domain.space.search_space import Space
from studydb.searchers.draws import check_seed, unit_draw


@dataclass(frozen=True)
class RandomSearch:
    """
    Propose independent draws without end; an empty space gives {} each time.

    Attributes:
        seed: The seed of studies created with it, None for one chosen then. The n-th point of two
            studies with equal seeds and spaces is the same.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse a seed that cannot be stored."""
        object.__setattr__(self, "seed", check_seed(self.seed, of="RandomSearch"))

    @property
    def origin(self) -> Origin:
        """What `trial.origin` says of its points."""
        return Origin.SEARCHER

    def to_json(self) -> dict[str, Any]:
        """As stored in the study's row."""
        return {"name": "RandomSearch", "seed": self.seed}

    def size(self, space: Space) -> int | None:  # noqa: ARG002  the protocol's
        """None: the points never end."""
        return None

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """
        The `draw`-th point, the same for whoever asks, in any order.

        Args:
            space: What to draw from.
            seed: The study's, not this searcher's.
            draw: 0-based.
        """
        return space.nest(
            {
                path: domain.from_unit(unit_draw(seed=seed, path=path, draw=draw))
                for path, domain in space.parameters.items()
            }
        )
