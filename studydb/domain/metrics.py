"""Metrics: the check of a report, and the summary of a trial's results."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from studydb.domain.canonical import LARGEST_DOUBLE, MAX_DEPTH, is_integral, is_number
from studydb.domain.errors import InvalidReport
from studydb.domain.objective import Objective
from studydb.domain.text.display import shortened, with_article

STEP = "training_iteration"
"""The key of the step among the metrics, named as in Ray Tune."""

DONE = "done"
"""A key of a report that is no metric: a true value completes the trial, as in Ray Tune."""

STEPS_END = 2**62
"""Every step is less than this."""

_LARGEST_INTEGER = 2**63 - 1
"""Larger integers become the nearest double."""


class Result(Struct, frozen=True):
    """
    The metrics of one step.

    Attributes:
        step: The `training_iteration`: an integer of 1 or more that rises within an attempt.
        value: The value of the study's metric, which may be NaN or ±Inf.
        metrics: The other metrics, flat: nested names are joined by "/".
        time_total_s: Seconds of training over all attempts of the trial, by monotonic clocks.
        is_last: Whether this result completes the trial (`done=True` in its report).
    """

    step: int
    value: float
    metrics: Mapping[str, Any]
    time_total_s: float | None = None
    is_last: bool = False

    def numbers(self) -> "Result":
        """Return the result with only those metrics that a double can hold, as `Tally` needs it."""
        numbers = {name: value for name, value in self.metrics.items() if is_double(value)}
        return self if len(numbers) == len(self.metrics) else structs.replace(self, metrics=numbers)


def value_of(result: Result, metric: str, objective: Objective) -> Any:
    """Return a metric's value; the step for `training_iteration`; None for a missing metric."""
    if metric == STEP:
        return result.step
    return result.value if metric == objective.metric else result.metrics.get(metric)


_RESULT_BYTES, _OBJECT_BYTES, _NUMBER_BYTES = 256, 64, 24
"""About how many bytes a `Result`, an empty text, dict or list, and a float take in Python."""

_ESCAPE_BYTES = 6
"""The length of `\\u00e9`, which Python's json module writes for a letter outside ASCII."""

MAX_REPORT_BYTES = 8_000_000
"""The most bytes, as estimated by `weigh`, of the metrics that a trial sends in one report."""


def weigh(result: Result) -> int:
    """
    Estimate how many bytes a result takes; see `weigh_value`.

    If a text has a character outside ASCII, each of its characters is counted as an escape of 6
    bytes, so the estimate can be too large by a factor of 6. A metric's name counts a byte per
    character.
    """
    size = _RESULT_BYTES
    if not result.metrics:
        return size
    for name, value in result.metrics.items():
        size += _OBJECT_BYTES + len(name)
        if not isinstance(value, float):  # _OBJECT_BYTES covers a float, too
            size += weigh_value(value)
    return size


def weigh_value(value: Any) -> int:
    """Estimate how many bytes a value takes; the same estimate serves for memory, JSON and SQL."""
    if isinstance(value, float):  # the usual case
        return _NUMBER_BYTES
    if isinstance(value, str):
        return _OBJECT_BYTES + len(value) * (1 if value.isascii() else _ESCAPE_BYTES)
    if isinstance(value, Mapping):
        names = sum(map(weigh_value, value))
        return _OBJECT_BYTES + names + sum(map(weigh_value, value.values()))
    if isinstance(value, list | tuple):
        return _OBJECT_BYTES + sum(map(weigh_value, value))
    return _NUMBER_BYTES


def read_report(
    report: Mapping[str, Any],
    *,
    metric: str,
    last_step: int,
    rises_from: int | None = None,
    time_total_s: float | None = None,
) -> Result:
    """
    Check a user's report and turn it into a result.

    Args:
        report: The user's dict; dicts may be nested, numbers may be NumPy's.
        metric: The study's metric; nested names are joined by "/".
        last_step: The last reported or restored step; a report without a step gets this step + 1.
        rises_from: The number that the step must exceed; if None, `last_step`. Callers give 0 for
            an attempt's first report, because its step may be below the restored step.
        time_total_s: See `Result`.

    Raises:
        InvalidReport: The report is no mapping or too large, the metric is missing or no number,
            the step is not an integer that rises, `done` is not true or false, two metrics have the
            same name, or a value cannot be stored.
    """
    if type(report) is not dict:
        _check_is_mapping(report, metric)
    flat: dict[str, Any] = {}
    _flatten(report, flat)
    if rises_from is None:
        rises_from = last_step
    step = _read_step(flat.pop(STEP, last_step + 1), rises_from)
    is_last = DONE in flat and _read_done(flat.pop(DONE))
    if metric not in flat:
        raise InvalidReport(
            f"The report at step {step} has no {metric!r}, the study's metric; "
            f"it has {', '.join(map(repr, flat)) or 'nothing'}. Report {metric!r} at each step."
        )
    value = flat.pop(metric)
    if not is_number(value):
        raise InvalidReport(
            f"{metric!r} at step {step} is {value!r}, {with_article(type(value).__name__)}; "
            "the study's metric must be a number."
        )
    result = Result(
        step=step,
        value=_as_float(metric, value),
        metrics=flat,
        time_total_s=time_total_s,
        is_last=is_last,
    )
    if flat and (size := weigh(result)) > MAX_REPORT_BYTES:
        raise InvalidReport(
            f"The metrics at step {step} are too large: about {size / 1e6:.1f} MB; the limit of a "
            f"report is {MAX_REPORT_BYTES / 1e6:.0f} MB. "
            "Save large arrays and texts with a checkpoint, or in a separate file."
        )
    return result


def plain_metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """
    Turn a user's report into a dict that `json.dumps` can write.

    The names of nested dicts are joined by "/", as `read_report` joins them.

    Raises:
        InvalidReport: The report is no mapping, two metrics have the same name, or a value cannot
            be stored.
    """
    _check_is_mapping(report, "error")
    flat: dict[str, Any] = {}
    _flatten(report, flat)
    return flat


def _check_is_mapping(report: object, metric: str) -> None:
    if not isinstance(report, Mapping):
        raise InvalidReport(
            f"report() was given {with_article(type(report).__name__)}; give a dict such as "
            f"{{{metric!r}: 0.5}}."
        )


def _as_float(metric: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidReport(f"{metric!r} is an integer too large for a double.") from None


def _read_step(step: Any, rises_from: int) -> int:
    if not is_integral(step):
        raise InvalidReport(f"{STEP!r} is {step!r}; a step is an integer that rises from 1.")
    if not -STEPS_END < step < STEPS_END:
        raise InvalidReport(f"{STEP!r} is an integer of more than 62 bits; steps count from 1.")
    if not rises_from < step:
        raise InvalidReport(
            f"{STEP!r} is {step}, which is not above {rises_from}; steps must rise."
        )
    return int(step)


def _read_done(done: Any) -> bool:
    if not isinstance(done, bool | int | float) or done not in (0, 1):
        raise InvalidReport(
            f"{DONE!r} is {shortened(repr(done), 80)}; it must be true or false. True completes "
            "the trial; leave it out to train on."
        )
    return bool(done)


def _flatten(
    report: Mapping[Any, Any], flat: dict[str, Any], prefix: str = "", depth: int = 0
) -> None:
    for key, value in report.items():
        name = f"{prefix}{key}"
        if name in flat:
            raise InvalidReport(
                f"The report has two metrics with the name {name!r}; names of nested dicts are "
                "joined by '/', and keys become text. Give each metric a name of its own."
            )
        if type(value) is float:  # the usual case, without further checks
            flat[_text(name, name)] = value
        elif isinstance(value, Mapping):
            _flatten(value, flat, f"{name}/", _deeper(name, depth))
        else:
            flat[_text(name, name)] = _plain(name, value, depth)


def _deeper(name: str, depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise InvalidReport(
            f"Metric {name[:80]!r} is nested more than {MAX_DEPTH} levels deep; flatten it."
        )
    return depth + 1


def _plain(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):  # a derived class, such as numpy's, becomes a float
        return float(value)
    if isinstance(value, int):
        return _as_integer(name, value)
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, list | tuple | Mapping):
        return _plain_container(name, value, _deeper(name, depth))
    unbox = getattr(value, "tolist", None) or getattr(value, "item", None)
    if unbox is not None:
        plain = unbox()
        if type(plain) is not type(value):
            return _plain(name, plain, depth)
    raise InvalidReport(
        f"Metric {name!r} is {with_article(type(value).__name__)}, which JSON cannot hold; "
        "report numbers, strings, or lists of them."
    )


def _plain_container(name: str, value: Any, depth: int) -> Any:
    if not isinstance(value, Mapping):
        return [_plain(name, item, depth) for item in value]
    return {_text(name, str(key)): _plain(name, item, depth) for key, item in value.items()}


def _as_integer(name: str, value: int) -> int | float:
    if abs(value) <= _LARGEST_INTEGER:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        raise InvalidReport(f"Metric {name!r} is an integer too large for a double.") from None


def _text(name: str, text: str) -> str:
    if "\0" in text or not text.isprintable():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidReport(f"Metric {name!r} holds text that is not Unicode.") from None
        if "\0" in text:
            raise InvalidReport(f"Metric {name!r} holds a NUL character, which SQL cannot hold.")
    return str.__str__(text)


def is_double(value: Any) -> bool:
    """Whether a value is a number that a double can hold, NaN and infinities included."""
    return isinstance(value, float) or (is_number(value) and abs(value) <= LARGEST_DOUBLE)


class Summary(Struct, frozen=True):
    """
    The summary of a trial's live results, stored in the trial's row.

    Attributes:
        best_score: The score of `best_value` (see `Objective.score`); None without results.
    """

    n_results: int = 0
    last_step: int | None = None
    last_value: float | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_score: float | None = None

    def add(self, results: Sequence[Result], objective: Objective) -> "Summary":
        """Return the summary with later results added; of equal best values, the first is kept."""
        if not results:
            return self
        best_value, best_step = self.best_value, self.best_step
        best = None if best_value is None else objective.rank(best_value)
        for result in results:
            rank = objective.rank(result.value)
            if best is None or rank < best:
                best_value, best_step, best = result.value, result.step, rank
        return Summary(
            n_results=self.n_results + len(results),
            last_step=results[-1].step,
            last_value=results[-1].value,
            best_value=best_value,
            best_step=best_step,
            best_score=None if best is None else best[0],
        )

    @property
    def rank_score(self) -> float | None:
        """The score by which trials are ranked; None without results, or if all values are NaN."""
        if self.best_value is None or math.isnan(self.best_value):
            return None
        return self.best_score
