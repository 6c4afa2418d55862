"""
Searchers of Optuna, which learn from the study's history.

The sampler runs in the study's proposer, outside any transaction. A sampler is allowed only if its
points are a function of the trials: several processes are the proposer in turn, and a process does
not have the state of another process's sampler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from studydb.domain.canonical import is_integral
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Origin
from studydb.domain.objective import Objective
from studydb.domain.space.search_space import Space
from studydb.domain.text.suggestions import did_you_mean
from studydb.searchers.random_search import RandomSearch
from studydb.searchers.seeded import Seeded

if TYPE_CHECKING:
    from studydb.searchers.optuna_model import OptunaModel

SAMPLERS: dict[str, dict[str, type]] = {
    "TPESampler": {
        "n_startup_trials": int,
        "n_ei_candidates": int,
        "multivariate": bool,
        "group": bool,
        "constant_liar": bool,
        "warn_independent_sampling": bool,
    }
}
"""
The allowed samplers, each with its options. Options that are functions are left out, and so are
options that Optuna 6.0 will remove, except `warn_independent_sampling`.
"""

_REFUSED = {
    "RandomSampler": "use RandomSearch()",
    "GridSampler": "use GridSearch()",
    "BruteForceSampler": "use GridSearch()",
    "CmaEsSampler": "it keeps its state in attributes of Optuna's trials",
    "NSGAIISampler": "it keeps its generations in attributes of Optuna's trials",
    "NSGAIIISampler": "it keeps its generations in attributes of Optuna's trials",
    "QMCSampler": "it counts its points in an attribute of Optuna's study",
    "PartialFixedSampler": "make the parameter a constant of the space",
    "GPSampler": "it needs torch, with which studydb is not tested",
}
"""Why other samplers of Optuna are refused, or what to use instead."""


@dataclass(frozen=True, init=False)
class OptunaSearch(Seeded):
    """
    Propose points by a sampler of Optuna: `OptunaSearch("TPESampler", n_startup_trials=5)`.

    A configuration is not proposed again; see `Searcher.wants_unique` for the exceptions. A trial
    gets a random point if its worker would have to wait too long for the sampler, if the sampler
    fails, or if the sampler gives only points that the study has; the trial's `origin` is then "by
    index". `pip install 'studydb[optuna]'` installs Optuna; the process that creates the study, all
    workers and all own loops need Optuna.

    Attributes:
        sampler: The name of a class of `optuna.samplers`; so far only "TPESampler".
        options_of_sampler: The sampler's arguments by name, except its seed.
    """

    origin: ClassVar[Origin] = Origin.SEARCHER
    wants_unique: ClassVar[bool] = True

    sampler: str = ""
    options_of_sampler: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __init__(
        self, sampler: str = "TPESampler", seed: int | None = None, **options: Any
    ) -> None:
        """
        Take the sampler's name, the seed, and the sampler's arguments by name.

        Args:
            seed: The seed of each study that is created with this searcher; see `Seeded`.
        """
        object.__setattr__(self, "sampler", sampler)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "options_of_sampler", options)
        self.__post_init__()

    def _check(self) -> None:
        super()._check()
        if self.sampler not in SAMPLERS:
            why = _REFUSED.get(self.sampler)
            raise InvalidSpec(
                f"The sampler {self.sampler!r} is not available in studydb"
                + (f": {why}. " if why else ". ")
                + f"studydb has {', '.join(SAMPLERS)}."
            )
        known = SAMPLERS[self.sampler]
        for name, value in self.options_of_sampler.items():
            if name not in known:
                raise InvalidSpec(
                    f"{self.sampler} has no option {name!r} in studydb; it takes "
                    f"{', '.join(known)}." + did_you_mean(name, known)
                )
            _check_option(f"{self.sampler}.{name}", value, known[name])

    def to_json(self) -> dict[str, Any]:
        given = {"name": self.kind, "sampler": self.sampler, "seed": self.seed}
        return given | dict(self.options_of_sampler)

    def check(self, space: Space, objectives: Sequence[Objective]) -> None:
        """Check that Optuna is installed and can search the space, which must have parameters."""
        if not space.parameters:
            raise InvalidSpec(
                "The space has no parameter for OptunaSearch to choose. Add a distribution, such "
                "as lr=loguniform(1e-4, 1)."
            )
        self.model(space, seed=self.seed or 0, objectives=objectives)

    def size(self, space: Space) -> int | None:  # noqa: ARG002
        return None

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """Return a random point, for the cases in which the model gives no new point in time."""
        return RandomSearch().propose(space, seed=seed, draw=draw)

    def model(self, space: Space, *, seed: int, objectives: Sequence[Objective]) -> "OptunaModel":
        """
        Make a model; see `HistorySearcher.model`.

        Raises:
            InvalidSpec: Optuna is not installed, or cannot express a parameter of the space.
        """
        try:
            from studydb.searchers.optuna_model import OptunaModel  # noqa: PLC0415  takes 0.5 s
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "optuna":
                raise
            raise InvalidSpec(
                "OptunaSearch needs Optuna, which is not installed here. "
                "Run: pip install 'studydb[optuna]'"
            ) from None
        return OptunaModel(self, space, seed=seed, objectives=objectives)


def _check_option(subject: str, value: Any, kind: type) -> None:
    if kind is bool and not isinstance(value, bool):
        raise InvalidSpec(f"{subject} is {value!r}; it must be true or false.")
    if kind is int and not (is_integral(value) and value >= 1):
        raise InvalidSpec(f"{subject} is {value!r}; it must be an integer of at least 1.")
