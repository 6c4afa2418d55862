"""A model that asks a sampler of Optuna. Only this module imports Optuna."""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from studydb.domain.canonical import canonical_json
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Mode, Reason, State
from studydb.domain.objective import Objective
from studydb.domain.searching import Observation
from studydb.domain.space.domains import (
    Choice,
    Domain,
    Integer,
    LogRandInt,
    LogUniform,
    QUniform,
    Uniform,
)
from studydb.domain.space.search_space import Space

if TYPE_CHECKING:
    from studydb.searchers.optuna_search import OptunaSearch

_COMPLETED = frozenset({Reason.COMPLETED, Reason.RULE_STOPPED})


class OptunaModel:
    """
    A study of Optuna in memory, to which trials are added in the order of their numbers.

    In Optuna's study, a trial has the first of these states that applies:

    - FAIL if the trial is invalidated or has a clone.
    - RUNNING if the trial has not ended and is not paused with a value.
    - FAIL if the trial is in ERROR, or its value is missing or NaN.
    - COMPLETE, with its last value, if the trial has completed, if a stop rule has ended it, or if
      the study has several objectives.
    - PRUNED, with its last value at its last step, in all other cases.

    Unless the option `constant_liar` is False, TPE counts RUNNING trials as bad trials, so that the
    points that are proposed together differ.
    """

    def __init__(
        self, spec: "OptunaSearch", space: Space, *, seed: int, objectives: Sequence[Objective]
    ) -> None:
        self._spec, self._space, self._seed, self._objectives = spec, space, seed, objectives
        self._axes = {path: _axis(path, domain) for path, domain in space.parameters.items()}
        self._distributions = {path: axis.distribution for path, axis in self._axes.items()}
        self._told: dict[int, Observation] = {}
        self._begin()

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        with _without_messages():
            self._study = optuna.create_study(
                storage=self._storage,
                sampler=self._sampler(0),
                directions=[
                    "minimize" if one.mode is Mode.MIN else "maximize" for one in self._objectives
                ],
            )
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._ids: dict[int, int] = {}
        self._ended: dict[int, FrozenTrial] = {}
        self._is_stale = False

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        kind = getattr(optuna.samplers, self._spec.sampler)
        sampler: optuna.samplers.BaseSampler = kind(seed=seed, **self._spec.options_of_sampler)
        return sampler

    def tell(self, observations: Sequence[Observation]) -> None:
        """See `Model.tell`."""
        for observation in observations:
            self._told[observation.number] = observation
            self._is_stale = self._is_stale or not self._add(observation)

    def _add(self, observation: Observation) -> bool:
        """Store a trial in Optuna's study; return False if Optuna's study must be made again."""
        number = observation.number
        if self._space.misfit(observation.params) is not None:
            return number not in self._ids  # another program wrote this row
        trial = self._trial(observation)
        if number not in self._ids:
            if self._ids and number < next(reversed(self._ids)):
                return False
            self._ids[number] = self._storage.create_new_trial(self._study_id, trial)
        elif number in self._ended:
            return _content(self._ended[number]) == _content(trial)
        elif trial.state.is_finished():
            self._end(self._ids[number], trial)
        if trial.state.is_finished():
            self._ended[number] = trial
        return True

    def _end(self, trial_id: int, trial: FrozenTrial) -> None:
        for step, value in trial.intermediate_values.items():
            self._storage.set_trial_intermediate_value(trial_id, step, value)
        self._storage.set_trial_state_values(trial_id, trial.state, trial.values)

    def _trial(self, observation: Observation) -> FrozenTrial:
        values = self._space.flatten(observation.params)
        state = _state_of(observation, several=len(self._objectives) > 1)
        pruned, complete = state is TrialState.PRUNED, state is TrialState.COMPLETE
        told = observation.values or ()
        return create_trial(
            state=state,
            params={path: self._axes[path].encode(value) for path, value in values.items()},
            distributions={path: self._distributions[path] for path in values},
            values=list(told) if complete else None,
            intermediate_values={observation.last_step or 0: told[0]} if pruned else None,
        )

    def propose(self, n: int, *, draw: int) -> list[dict[str, Any]]:
        """See `Model.propose`."""
        if self._is_stale:
            self._begin()
            for number in sorted(self._told):
                self._add(self._told[number])
        digest = hashlib.sha256(f"{self._seed}/optuna/{draw}".encode()).digest()
        self._study.sampler = self._sampler(int.from_bytes(digest[:4], "big"))
        asked = []
        try:
            for _ in range(n):
                asked.append(self._study.ask(self._distributions))  # noqa: PERF401  `finally` ends the trials asked before an error
            return [self._point(trial.params) for trial in asked]
        finally:  # samplers take no notice of failed trials
            for trial in asked:
                self._study.tell(trial, state=TrialState.FAIL)

    def _point(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._space.nest(
            {path: axis.decode(params[path]) for path, axis in self._axes.items()}
        )


def _state_of(observation: Observation, *, several: bool) -> TrialState:
    values, state = observation.values, observation.state
    is_waiting = state is State.PAUSED and values is not None
    if observation.reason is None and not is_waiting:
        return TrialState.RUNNING
    is_useless = values is None or any(map(math.isnan, values))
    if is_useless or state is State.ERROR or observation.reason is Reason.INVALIDATED:
        return TrialState.FAIL
    if several or observation.reason in _COMPLETED:
        return TrialState.COMPLETE
    return TrialState.PRUNED


def _content(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.values, trial.intermediate_values, trial.params


@dataclass(frozen=True)
class _Axis:
    """A parameter with its distribution in Optuna."""

    domain: Domain
    distribution: BaseDistribution

    def encode(self, value: Any) -> Any:
        return self.domain.cast(value)

    def decode(self, value: Any) -> Any:
        """Return the parameter's value; a value that rounding has put out of bounds is clipped."""
        lower, upper = self.domain.lower, self.domain.upper  # type: ignore[attr-defined]
        return self.domain.cast(min(max(value, lower), upper))


class _IndexAxis(_Axis):
    """A parameter for which Optuna chooses the index of a value."""

    def decode(self, value: Any) -> Any:
        assert self.domain.distinct is not None
        return self.domain.distinct[value]


class _StepAxis(_IndexAxis):
    """A `quniform`, by index: with a step of q, Optuna would sample lower + k * q, not k * q."""

    def encode(self, value: Any) -> int:
        assert self.domain.distinct is not None
        return bisect_left(self.domain.distinct, self.domain.cast(value))


class _ChoiceAxis(_IndexAxis):
    """A `choice`, by index: its values may be lists or dicts, but a category of Optuna may not."""

    def encode(self, value: Any) -> int:
        assert self.domain.distinct is not None
        texts = [canonical_json(one) for one in self.domain.distinct]
        return texts.index(canonical_json(value))


def _axis(path: str, domain: Domain) -> _Axis:
    """
    Choose the distribution of a parameter.

    Raises:
        InvalidSpec: Optuna has no distribution for this parameter.
    """
    match domain:
        case Choice(distinct=values):
            return _ChoiceAxis(domain, CategoricalDistribution(range(len(values))))
        case QUniform(size=size):
            return _StepAxis(domain, IntDistribution(0, size - 1))
        case Uniform() | LogUniform():
            is_log = isinstance(domain, LogUniform)
            return _Axis(domain, FloatDistribution(domain.lower, domain.upper, log=is_log))
        case Integer():
            is_log = isinstance(domain, LogRandInt)
            return _Axis(domain, IntDistribution(domain.lower, domain.upper, log=is_log))
    raise InvalidSpec(
        f"OptunaSearch cannot search {path!r}, which is {domain}: Optuna has no such distribution. "
        "Use RandomSearch, or another distribution."
    )


@contextmanager
def _without_messages() -> Iterator[None]:
    """Keep Optuna from writing a line for each study that is made in memory."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
