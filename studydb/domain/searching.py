"""
The contract of searchers, which propose points by index or by a model of the study's history.

A searcher is a frozen spec without SQL, and its JSON form is stored in the study's row. Each trial
that a searcher proposes has a draw: 0, 1, 2, … within the study. Every searcher can propose points
by index; such a point is a pure function of the space, the seed and the draw. A searcher by history
also makes a model, which learns from the study's trials. A model is a cache: every process can make
it again from the study's rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from studydb.domain.life.states import Origin, Reason, State
from studydb.domain.objective import Objective
from studydb.domain.space.search_space import Space


class Searcher(Protocol):
    """Proposes params; frozen. The point that `propose` returns is the same in every process."""

    @property
    def origin(self) -> Origin:
        """The `origin` of the trials that this searcher proposes."""

    @property
    def seed(self) -> int | None:
        """The seed of each study created with this searcher; None for a random seed per study."""

    @property
    def wants_unique(self) -> bool:
        """
        Whether a proposed point must differ from the params of all other trials.

        There are two exceptions: trials that people enqueue or clone may repeat params, and so may
        a point by index in a space with floats, after several tries (`lease/proposing.py`).
        """

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the study's row; `searchers.read` reads it."""

    def check(self, space: Space, objectives: Sequence[Objective]) -> None:
        """
        Check that this searcher can search a space, before a study is created.

        Raises:
            InvalidSpec: The searcher cannot search the space, or a package is not installed.
        """

    def size(self, space: Space) -> int | None:
        """Return how many points can be proposed in a space; None for no limit."""

    def propose(self, space: Space, *, seed: int, draw: int) -> dict[str, Any]:
        """
        Return the `draw`-th point (0-based): nested params without the space's constants.

        For a searcher by history, this is the point to take if the model fails or gives no new
        point, or if a worker has waited too long for the model.
        """


class Observation(Struct, frozen=True, kw_only=True):
    """
    What a model is told of one configuration.

    If a configuration has several trials (replicates), there is one observation of all of them. The
    observation has the number of the first trial, and the mean of each objective over the
    replicates that have ended with a value. While a replicate has not ended, the observation has
    the state of that replicate. No study has replicates yet.

    Attributes:
        number: The trial's number; a model may order observations by it.
        params: Nested params. In a conditional space, inactive parameters are missing; no space is
            conditional yet.
        state: `State.TERMINATED` and `State.ERROR` are final. A trial in any other state is
            unfinished: it runs, or it waits to run, or it is paused and may go on.
        reason: Why the trial ended; None if the trial has not ended. A trial that was cancelled
            before its first result has `Reason.CANCELLED` and no values. An invalidated trial has
            `Reason.INVALIDATED` and no values, even while it runs; its state and last step are
            kept. A trial that has a clone looks like an invalidated trial, because the clone takes
            its place. So does a trial whose parameters a person has changed, because its values do
            not belong to `params`.
        values: The last value of each objective, in the order of the objectives; None if the trial
            has no result. A value may be NaN or infinite.
        scores: The values as scores: a lower score is better, and NaN is +Inf.
        last_step: The step of the last result; None if the trial has no result.
        origin: Where the params come from, for example from a person who enqueued the trial.
        feasible: Whether the trial satisfies the study's constraints; None if that is not known. No
            study has constraints yet.
    """

    number: int
    params: Mapping[str, Any]
    state: State
    reason: Reason | None
    values: tuple[float, ...] | None
    scores: tuple[float, ...] | None
    last_step: int | None
    origin: Origin
    feasible: bool | None = None


class Model(Protocol):
    """
    What a searcher by history has learned.

    Each process makes its own model, and one thread at a time uses the model.

    The proposals must be a function of the space, the seed, the draw and the observations. They
    must not depend on how the observations were divided into calls of `tell`, on the process, or on
    earlier proposals: only then does a study get the same points after a restart.
    """

    def tell(self, observations: Sequence[Observation]) -> None:
        """
        Take note of trials that are new, or that changed since the last call.

        Args:
            observations: In ascending order of their numbers. An observation replaces the earlier
                one with the same number, for example because a running trial has ended, a paused
                trial runs again, or a person has invalidated an ended trial.
        """

    def propose(self, n: int, *, draw: int) -> list[dict[str, Any]]:
        """
        Return points for `n` trials that will run at the same time.

        The caller holds no transaction, because this method may take minutes. The caller drops
        points that the study already has. If points are then missing, the caller calls this method
        up to three times more, with draws of 2**64 or more, which no trial has.

        Args:
            draw: The draw of the first point. All random numbers come from the seed and this draw.

        Returns:
            Nested params without the space's constants.
        """


@runtime_checkable
class HistorySearcher(Searcher, Protocol):
    """A searcher that proposes points from the study's history, by a model."""

    def model(self, space: Space, *, seed: int, objectives: Sequence[Objective]) -> Model:
        """
        Make a model that knows no trial yet.

        Args:
            seed: The seed of the study, not `self.seed`.
            objectives: The study's objectives; most searchers support only one.

        Raises:
            InvalidSpec: A package is missing, or the space or the objectives are not supported.
        """
