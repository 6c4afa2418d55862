"""The protocol of searchers."""

from typing import Any, Protocol

from studydb.domain.life.states import Origin
from studydb.domain.space.search_space import Space


class Searcher(Protocol):
    """Proposes configurations; frozen. The n-th point is the same in every process."""

    @property
    def origin(self) -> Origin:
        """The `origin` of the trials that this searcher proposes."""

    @property
    def seed(self) -> int | None:
        """The seed for studies created with this searcher; None if each gets a random seed."""

    @property
    def wants_unique(self) -> bool:
        """Whether the study's trials must have different params; see `trial.is_unique`."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `searchers.read` reads it."""

    def size(self, space: Space) -> int | None:
        """Return the number of points; None for no limit."""

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """Return the `draw`-th point (0-based): nested params without the space's constants."""
