"""A searcher by history for tests: its points depend on all that its model was told."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from studydb.domain.life.states import Origin
from studydb.domain.objective import Objective
from studydb.domain.searching import Observation
from studydb.domain.space.search_space import Space
from studydb.searchers import BY_NAME, RandomSearch
from studydb.searchers.seeded import Seeded


class TestModel:
    """Keeps what it was told; the seed, the draw and the observations determine its points."""

    __test__ = False

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.seed = space, seed
        self.told: dict[int, Observation] = {}
        self.calls: list[list[Observation]] = []

    def tell(self, observations: Sequence[Observation]) -> None:
        self.calls.append(list(observations))
        self.told |= {one.number: one for one in observations}

    def propose(self, n: int, *, draw: int) -> list[dict[str, Any]]:
        known = repr(
            [(self.told[number].number, self.told[number].values) for number in sorted(self.told)]
        )
        digest = hashlib.sha256(f"{self.seed}/{draw}/{known}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big")
        return [RandomSearch().propose(self.space, seed=seed, draw=index) for index in range(n)]


@dataclass(frozen=True)
class ModelSearch(Seeded):
    """A searcher with a `TestModel`; a study's row can name it, because it is in `BY_NAME`."""

    origin: ClassVar[Origin] = Origin.SEARCHER
    wants_unique: ClassVar[bool] = True
    models: ClassVar[list[TestModel]] = []

    def size(self, space: Space) -> None:  # noqa: ARG002
        return None

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        return RandomSearch().propose(space, seed=seed, draw=draw)

    def model(
        self,
        space: Space,
        *,
        seed: int,
        objectives: Sequence[Objective],  # noqa: ARG002
    ) -> TestModel:
        made = TestModel(space, seed)
        self.models.append(made)
        return made


BY_NAME.setdefault("ModelSearch", ModelSearch)
