"""The base class of searchers; it checks the seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from studydb.domain.errors import InvalidSpec
from studydb.domain.objective import Objective
from studydb.domain.space.search_space import Space
from studydb.domain.specs.spec import Spec


@dataclass(frozen=True)
class Seeded(Spec):
    """
    A searcher with a seed.

    Attributes:
        seed: The seed of each study that is created with this searcher, 0 to 2**63 - 1; None for a
            random seed per study.
    """

    wants_unique: ClassVar[bool] = False

    seed: int | None = None

    def check(self, space: Space, objectives: Sequence[Objective]) -> None:
        """Accept every space; see `Searcher.check`."""

    def _check(self) -> None:
        if self.seed is not None and self.seed < 0:
            raise InvalidSpec(
                f"{self.kind}.seed is {self.seed}; "
                "give an integer from 0 to 2**63 - 1, or None for a random one."
            )
