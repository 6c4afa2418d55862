"""Stop rules: each result is compared with the rules before the scheduler judges the result."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from studydb.domain.canonical import is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.metrics import STEP, Result
from studydb.domain.objective import Objective
from studydb.domain.specs.spec import Spec
from studydb.domain.text.names import check_metric_name

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TEXT = re.compile(r"\s*(?P<metric>[^<>=]+?)\s*(?P<op>>=|<=|>|<)\s*(?P<bound>\S+)\s*")


@dataclass(frozen=True)
class Threshold(Spec):
    """
    Stop a trial when a metric passes a bound.

    Attributes:
        metric: A metric's name, or `training_iteration` for the step.
        op: One of >=, <=, >, <. A rule that is given in a dict has >=, as in Ray Tune.
    """

    metric: str
    op: str
    bound: float

    def hit(self, result: Result, *, objective: Objective) -> bool:
        """Whether this result hits the rule; False if the metric is missing or not a number."""
        value = _lookup(result, self.metric, objective)
        return is_number(value) and _COMPARE[self.op](value, self.bound)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form. It lacks the key "name", as in the rows of older versions."""
        return self.options()


def _lookup(result: Result, metric: str, objective: Objective) -> Any:
    if metric == STEP:
        return result.step
    return result.value if metric == objective.metric else result.metrics.get(metric)


def read_rules(stop: Mapping[str, Any] | Iterable[str] | None) -> tuple[Threshold, ...]:
    """
    Read `stop=`: texts such as "loss>=3", or the dict {"loss": 3}, which means the same.

    Raises:
        InvalidSpec: A bound is not a number, or a text is not a comparison.
    """
    if stop is None:
        return ()
    if isinstance(stop, Mapping):
        return tuple(_threshold(metric, ">=", bound) for metric, bound in stop.items())
    if isinstance(stop, str):
        stop = [stop]
    if not isinstance(stop, Iterable):
        raise InvalidSpec(
            f"stop is {stop!r}; give metrics and bounds, as {{'loss': 3}} or ['loss>=3']."
        )
    return tuple(_read_text(text) for text in stop)


def _read_text(text: Any) -> Threshold:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidSpec(
            f"The stop rule {text!r} is not a comparison; write for example 'loss>=3'."
        )
    return _threshold(match["metric"], match["op"], match["bound"])


def _threshold(metric: Any, op: str, bound: Any) -> Threshold:
    check_metric_name(metric)
    try:
        number = math.nan if isinstance(bound, bool) else float(bound)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise InvalidSpec(f"The stop rule for {metric!r} needs a number, not {bound!r}.")
    return Threshold(metric, op, number)


def first_hit(
    rules: Iterable[Threshold], result: Result, *, objective: Objective
) -> Threshold | None:
    """Return the first rule that this result hits; None if it hits none."""
    return next((rule for rule in rules if rule.hit(result, objective=objective)), None)
