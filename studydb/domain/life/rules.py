"""
Stop rules: how they are read, and which of them a result hits.

Each result is compared with the rules for trials before the scheduler judges the result.
"""

import math
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studydb.domain.arguments import elements
from studydb.domain.canonical import is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.custom_rule import (
    CustomRule,
    StopRule,
    custom_rule_from_json,
    custom_rule_from_text,
    custom_rule_of,
)
from studydb.domain.life.plateau import Plateau
from studydb.domain.metrics import Result, value_of
from studydb.domain.objective import Objective
from studydb.domain.specs.building import build, rebuild
from studydb.domain.specs.grammar import parse_call
from studydb.domain.specs.spec import Spec, suggesting_options
from studydb.domain.text.names import check_metric_name
from studydb.domain.user_code import IS_PATH

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CALL = re.compile(r"\s*[A-Za-z]\w*\s*\(")
_TEXT = re.compile(r"\s*(?P<metric>[^<>=]+?)\s*(?P<op>>=|<=|>|<)\s*(?P<bound>\S+)\s*")


@suggesting_options
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

    @property
    def needs_history(self) -> bool:
        """Whether the rule compares a result with earlier results of the trial."""
        return False

    def hit(self, history: Sequence[Result], n_results: int = 1, *, objective: Objective) -> bool:  # noqa: ARG002  Plateau uses it
        """Whether the last result hits the rule; False if the metric is missing or no number."""
        value = value_of(history[-1], self.metric, objective)
        return is_number(value) and _COMPARE[self.op](value, self.bound)

    def may_hit(self, recent: Sequence[Result], *, objective: Objective) -> bool:
        """Whether the last result hits the rule."""
        return self.hit(recent, objective=objective)

    def to_json(self) -> dict[str, Any]:
        """Return the options, without a name: a stored rule without a name is a threshold."""
        return self.options()


Rule = Threshold | Plateau | CustomRule

_Given = str | Plateau | StopRule

StopRules = Mapping[str, Any] | Iterable[_Given] | _Given
"""
The argument `stop`. A rule in the user's own code is an object of a subclass of `StopRule`, or a
text: the import path of the subclass, with options.
"""

_KNOWN = {"Plateau": Plateau}


def read_rules(stop: Any) -> tuple[Rule, ...]:
    """
    Read `stop=`: rules such as "loss>=3", Plateau("loss") and "my_rules:TooSlow(limit=3)".

    {"loss": 3} means "loss>=3". The user's module is not imported.

    Raises:
        InvalidSpec: `stop` or one of its rules has a wrong type, a bound is not a number, a text is
            neither a comparison nor a call, a call names no rule or has a wrong option, or a rule
            in the user's code cannot be described.
        InvalidName: The name of a metric breaks a rule for names.
    """
    if stop is None:
        return ()
    if isinstance(stop, Mapping):
        return tuple(_threshold(metric, ">=", bound) for metric, bound in stop.items())
    if isinstance(stop, str | Plateau | StopRule | type):
        stop = [stop]
    if (rules := elements(stop)) is None:
        raise InvalidSpec(
            f"stop is {stop!r}; give metrics and bounds, such as {{'loss': 3}} or ['loss>=3']."
        )
    return tuple(map(_read_rule, rules))


def rule_from_json(stored: Mapping[str, Any]) -> Rule:
    """Read a rule of a study's row; a rule without a name is a threshold."""
    if ":" in str(stored.get("name", "")):
        return custom_rule_from_json(stored)
    return rebuild(stored, _KNOWN, noun="stop rule") if "name" in stored else Threshold(**stored)


def _read_rule(given: Any) -> Rule:
    if isinstance(given, Plateau):
        return given
    if isinstance(given, StopRule | type):
        return custom_rule_of(given)
    if isinstance(given, str) and IS_PATH.fullmatch(given):
        return custom_rule_from_text(given)
    return _read_text(given)


def _read_text(text: Any) -> Rule:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None and isinstance(text, str) and _CALL.match(text):
        return build(parse_call(text), _KNOWN, noun="stop rule")
    if match is None:
        raise InvalidSpec(
            f"The stop rule {text!r} is not a comparison; write for example 'loss>=3' or "
            "'Plateau(metric=loss)'. A rule in your own code is an object of a class that derives "
            "from studydb.StopRule, or a text such as 'my_rules:TooSlow(limit=3)'."
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
    rules: Iterable[Rule], history: Sequence[Result], n_results: int, *, objective: Objective
) -> Rule | None:
    """
    Return the first rule that the last result of a trial hits; None if the result hits no rule.

    Custom rules (see `Batch.ruled`) and rules that stop the whole study (see `Plateau.after`) are
    never returned.

    Args:
        history: The trial's last results: at least `longest_history` of them, or all if the
            trial has fewer.
        n_results: The number of all live results of the trial.
    """
    hits = (rule for rule in rules if rule.hit(history, n_results, objective=objective))
    return next(hits, None)


def longest_history(rules: Iterable[Rule]) -> int:
    """Return how many of a trial's last results `first_hit` needs: 1 or more."""
    plateaus = (rule for rule in rules if isinstance(rule, Plateau) and rule.top is None)
    return max((rule.num_results for rule in plateaus), default=1)


def rules_of_study(rules: Iterable[Rule]) -> list[Plateau]:
    """Return the rules that stop the whole study, not one trial."""
    return [rule for rule in rules if isinstance(rule, Plateau) and rule.top is not None]


def custom_rules(rules: Iterable[Rule]) -> list[CustomRule]:
    """Return the rules in the user's own code, in order."""
    return [rule for rule in rules if isinstance(rule, CustomRule)]


def rule_warning(rules: Iterable[Rule], result: Result, *, objective: Objective) -> str | None:
    """Return a warning if a result lacks a metric that a rule compares; else return None."""
    named = (rule.metric for rule in rules if not isinstance(rule, CustomRule))
    missing = next((each for each in named if value_of(result, each, objective) is None), None)
    if missing is None:
        return None
    reported = ", ".join(map(repr, (objective.metric, *sorted(result.metrics))))
    return (
        f"A stop rule compares {missing!r}, which the result of step {result.step} lacks; reported "
        f"are {reported}. Trials go on: a result without {missing!r} does not meet the rule."
    )


class RuleWatch:
    """
    Tells which results of an attempt may hit a rule.

    After such a result the trial waits for the transaction that stores the result, because this
    transaction decides whether the trial ends.
    """

    def __init__(self, rules: Sequence[Rule], objective: Objective) -> None:
        self._rules, self._objective = rules, objective
        self._recent: deque[Result] = deque(maxlen=longest_history(rules))

    def may_hit(self, result: Result) -> bool:
        """Record the attempt's next result, and tell whether this result may hit a rule."""
        self._recent.append(result)
        recent = tuple(self._recent)
        return any(rule.may_hit(recent, objective=self._objective) for rule in self._rules)

    def passes_a_bound(self, result: Result) -> bool:
        """Whether a result hits a `Threshold`, which compares no other result."""
        bounds = [rule for rule in self._rules if isinstance(rule, Threshold)]
        return first_hit(bounds, [result], 1, objective=self._objective) is not None
