"""How the user's function is called: every signature that studydb understands."""

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from studydb.domain.errors import TrainableError

EXTRAS = ("trial", "reporter", "checkpoint_dir")
"""The parameters that a trainable may have beside the config, by name."""


class Restored(Protocol):
    """A checkpoint to start from."""

    @property
    def path(self) -> Any:
        """The directory."""


class Reports(Protocol):
    """As much of a trial as a call needs."""

    @property
    def metric(self) -> str:
        """The study's metric."""

    @property
    def checkpoint(self) -> Restored | None:
        """What to start from, None for nothing."""

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        """Report one step."""


class Reporter:
    """The `reporter` of `f(config, reporter)`: takes metrics as keywords."""

    def __init__(self, trial: Reports) -> None:
        """Report to this trial."""
        self._trial = trial

    def __call__(
        self, metrics: Mapping[str, Any] | None = None, /, *, checkpoint: Any = None, **named: Any
    ) -> None:
        """Report one step: `reporter(loss=0.5)`."""
        self._trial.report({**(metrics or {}), **named}, checkpoint=checkpoint)


def check_signature(function: Callable[..., Any]) -> None:
    """
    Refuse what cannot be called with a config.

    Raises:
        TrainableError: With the parameter that is in the way.
    """
    name = _name(function)
    if not callable(function) or inspect.isclass(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise TrainableError(f"The trainable {name} is a {kind}; give a function.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TrainableError(f"The trainable {name} is async; give a plain function.")
    parameters = _parameters(function)
    if parameters is None:
        return
    first = parameters[0] if parameters else None
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise TrainableError(f"The trainable {name} takes no config; write {name}(config).")
    for parameter in parameters[1:]:
        if parameter.name not in EXTRAS and _is_required(parameter):
            raise TrainableError(
                f"The trainable {name} requires {parameter.name!r}, which studydb cannot give. "
                f"Beside the config it knows {', '.join(EXTRAS)}; "
                "give any other a default or put it into the config."
            )


def call(function: Callable[..., Any], config: dict[str, Any], trial: Reports) -> Any:
    """
    Run a trainable to its end; what a generator yields is reported on the way.

    Returns:
        What it returned at last (see `returned_metrics`).

    Raises:
        TrainableError: Its signature is none of those that studydb knows.
    """
    check_signature(function)
    positional, named = _extras(function, trial)
    result = function(config, *positional, **named)
    return _drain(result, trial) if inspect.isgenerator(result) else result


def returned_metrics(value: Any, metric: str) -> dict[str, Any] | None:
    """
    Read what a trainable returned or yielded: a dict of metrics, or the study's metric itself.

    Raises:
        TrainableError: It is neither.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(type(value), "__float__") and not isinstance(value, bool):
        return {metric: value}
    raise TrainableError(
        f"The trainable gave back a {type(value).__name__}; give a dict of metrics, "
        f"a number for {metric!r}, or nothing."
    )


def _drain(generator: Generator[Any, Any, Any], trial: Reports) -> Any:
    try:
        while True:
            metrics = returned_metrics(next(generator), trial.metric)
            if metrics is not None:
                trial.report(metrics)
    except StopIteration as end:
        return end.value
    finally:
        generator.close()


def _extras(function: Callable[..., Any], trial: Reports) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in (_parameters(function) or [])[1:]:
        if parameter.name not in EXTRAS or parameter.kind in _VARIABLE:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(_extra(parameter.name, trial))
        else:
            named[parameter.name] = _extra(parameter.name, trial)
    return positional, named


def _extra(name: str, trial: Reports) -> Any:
    if name == "trial":
        return trial
    if name == "reporter":
        return Reporter(trial)
    return None if trial.checkpoint is None else str(trial.checkpoint.path)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C do not tell
        return None


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIABLE


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
