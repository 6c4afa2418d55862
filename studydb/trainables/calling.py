"""Call a trainable with the arguments that its signature asks for."""

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, cast

from studydb.domain.errors import TrainableError
from studydb.domain.text.display import with_article
from studydb.trainables.classes import ClassRun, ClassTrial, Trainable, check_class

EXTRAS = ("trial", "reporter", "checkpoint_dir")
"""The names of the arguments that studydb can pass to a function besides the config."""

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CheckpointDirectory(Protocol):
    """A checkpoint to start from."""

    @property
    def path(self) -> Any:
        """The directory."""


class ReportingTrial(Protocol):
    """The part of a trial that the call of a trainable needs."""

    @property
    def metric(self) -> str:
        """The study's metric."""

    @property
    def checkpoint(self) -> CheckpointDirectory | None:
        """The checkpoint to start from; None to start from scratch."""

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> bool:
        """Report one step."""


class Reporter:
    """The `reporter` of `f(config, reporter)`, which takes metrics as keywords."""

    def __init__(self, trial: ReportingTrial) -> None:
        self._trial = trial

    def __call__(
        self, metrics: Mapping[str, Any] | None = None, /, *, checkpoint: Any = None, **named: Any
    ) -> None:
        """Report one step: `reporter(loss=0.5)`."""
        self._trial.report({**(metrics or {}), **named}, checkpoint=checkpoint)


def check_signature(function: Callable[..., Any]) -> None:
    """
    Refuse an object that cannot be called with a config, and a class that is no trainable.

    Raises:
        TrainableError: The object cannot be called, is async, takes no config, or requires a
            further argument that is not in `EXTRAS`; or `check_class` refuses the class.
    """
    name = qualified_name(function)
    if inspect.isclass(function):
        check_class(function)
        return
    if not callable(function):
        kind = with_article(type(function).__name__)
        raise TrainableError(f"The trainable is {kind}; give a function or a class.")
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
                f"Besides the config studydb gives {', '.join(EXTRAS)}. "
                "Give any other parameter a default, or put it into the config."
            )


def call(function: Callable[..., Any], config: dict[str, Any], trial: ReportingTrial) -> Any:
    """
    Run a trainable to its end; if it is a generator, report the metrics that it yields.

    Returns:
        The function's return value (see `returned_metrics`); None for a class.

    Raises:
        TrainableError: See `check_signature` and `ClassRun`; or a generator has yielded a value
            that `returned_metrics` refuses.
    """
    check_signature(function)
    if inspect.isclass(function):
        return ClassRun(cast("type[Trainable]", function))(config, cast("ClassTrial", trial))
    positional, named = _extras(function, trial)
    result = function(config, *positional, **named)
    return _drain(result, trial) if inspect.isgenerator(result) else result


def returned_metrics(value: Any, metric: str) -> dict[str, Any] | None:
    """
    Turn the value that a trainable returned or yielded into a dict of metrics; None stays None.

    Raises:
        TrainableError: The value is neither a dict of metrics nor a number.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(type(value), "__float__") and not isinstance(value, bool):
        return {metric: value}
    raise TrainableError(
        f"The trainable returned or yielded {with_article(type(value).__name__)}; "
        f"return a dict of metrics, a number for {metric!r}, or nothing."
    )


def _drain(generator: Generator[Any, Any, Any], trial: ReportingTrial) -> Any:
    try:
        while True:
            metrics = returned_metrics(next(generator), trial.metric)
            if metrics is not None:
                trial.report(metrics)
    except StopIteration as end:
        return end.value
    finally:
        generator.close()


def _extras(
    function: Callable[..., Any], trial: ReportingTrial
) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in (_parameters(function) or [])[1:]:
        is_extra = parameter.name in EXTRAS and parameter.kind not in _VARIABLE
        if parameter.kind is parameter.POSITIONAL_ONLY:
            default = parameter.default
            positional.append(_extra(parameter.name, trial) if is_extra else default)
        elif is_extra:
            named[parameter.name] = _extra(parameter.name, trial)
    return positional, named


def _extra(name: str, trial: ReportingTrial) -> Any:
    if name == "trial":
        return trial
    if name == "reporter":
        return Reporter(trial)
    return None if trial.checkpoint is None else str(trial.checkpoint.path)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return None


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIABLE


def qualified_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
