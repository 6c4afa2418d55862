"""
Recorded learning curves: for each configuration, the values of a metric, step by step.

A file of curves is JSON:

    {"metric": "error", "mode": "min", "space": {…}, "curves": [
        {"params": {"lr": 0.1}, "values": [0.9, 0.5], "steps": [1, 2], "step_s": 0.3}, …]}

All keys except `curves` and `values` may be missing. `space` has the form in which a study's row
stores its space. An entry of `curves` may have the key `config` instead of `params`, and the
metric's name instead of `values`. An entry may also be just a list of values.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field

from studydb.db import Database
from studydb.domain.canonical import is_integral, is_number
from studydb.domain.errors import InvalidSpec, NotAllowed
from studydb.domain.life.states import Mode, Reason
from studydb.domain.listed_rows import ListedTrial
from studydb.domain.metrics import STEPS_END
from studydb.domain.objective import Objective
from studydb.domain.records import Study
from studydb.domain.space.search_space import Space
from studydb.operations.pages import result_pages, trial_pages
from studydb.operations.reads import trials_begun_from_checkpoints

TRAINED_TO_END = frozenset({Reason.COMPLETED, Reason.RULE_STOPPED})
"""A trial that ended for one of these reasons was trained to its end, so its curve is whole."""

_VALUES, _PARAMS = "values", ("params", "config")
_PAIR = 2


class Curve(Struct, frozen=True):
    """
    The values of one configuration.

    Attributes:
        values: The metric's value after each step; NaN and infinities are allowed.
        steps: The `training_iteration` of each value, ascending.
        params: The configuration; empty if unknown.
        step_s: How many seconds a step took, on average; None if unknown.
    """

    values: tuple[float, ...]
    steps: tuple[int, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    step_s: float | None = None

    @classmethod
    def read(
        cls,
        values: Iterable[Any],
        *,
        steps: Iterable[int] | None = None,
        params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
        step_s: float | None = None,
        subject: str = "The curve",
    ) -> Self:
        """
        Make a curve, and check its values and steps.

        Args:
            params: A mapping, or a list or tuple of pairs; each name is a text.

        Raises:
            InvalidSpec: There is no value; a value is not a number, or is too large for a double;
                `step_s` is not a finite number of at least 0; the number of `steps` is not the
                number of values; the steps are not ascending integers of 1 or more; or `params` is
                neither a mapping nor pairs.
        """
        numbers = _listed(values, subject)
        if not numbers or not all(map(is_number, numbers)):
            raise InvalidSpec(f"{subject} is {shown(numbers)}; give one or more numbers.")
        at = _listed(range(1, len(numbers) + 1) if steps is None else steps, f"{subject}'s `steps`")
        rises = all(is_integral(step) and step < STEPS_END for step in at) and all(
            before < after for before, after in pairwise((0, *at))
        )
        if len(at) != len(numbers) or not rises:
            raise InvalidSpec(
                f"{subject} has {len(numbers)} values and the steps {shown(at)}; give a step for "
                "each value: 1 or more, in ascending order."
            )
        if step_s is not None and not (is_number(step_s) and 0 <= step_s < math.inf):
            raise InvalidSpec(
                f"{subject} has step_s={step_s!r}; give the seconds of a step, a finite number "
                "of 0 or more."
            )
        given = {} if params is None else _named(params, subject)
        return cls(_doubles(numbers, subject), tuple(map(int, at)), given, step_s)

    @property
    def last_value(self) -> float:
        """The value after the whole training."""
        return self.values[-1]


def _listed(given: Iterable[Any], subject: str) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise InvalidSpec(f"{subject} is {given!r}; give a list of numbers.") from None


def _doubles(numbers: Sequence[Any], subject: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, numbers))
    except OverflowError:
        raise InvalidSpec(f"{subject} has a number that is too large for a double.") from None


def _named(params: Any, subject: str) -> dict[str, Any]:
    pairs = list(params.items()) if isinstance(params, Mapping) else params
    if not isinstance(pairs, list | tuple) or not all(map(_is_named, pairs)):
        raise InvalidSpec(
            f"{subject} has the parameters {params!r}; give a dict with texts as keys, or pairs "
            'such as (("lr", 0.1), ("width", 64)).'
        )
    return dict(pairs)


def _is_named(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == _PAIR and isinstance(pair[0], str)


def shown(numbers: Sequence[Any]) -> str:
    """Write the first five of some numbers, for a message."""
    return f"[{', '.join(map(repr, numbers[:5]))}{', …' if len(numbers) > 5 else ''}]"  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class RecordedCurves:
    """
    The curves of one task.

    Attributes:
        objective: The metric and the mode.
        curves: One for each configuration; at least one.
        space: The space from which the configurations come; None if unknown.
        n_left_out: If the curves come from a study, the number of its trials without a curve; see
            `of_study`. Invalidated trials do not count.
    """

    objective: Objective
    curves: tuple[Curve, ...]
    space: Space | None = None
    n_left_out: int = 0

    def __post_init__(self) -> None:
        if not self.curves:
            raise InvalidSpec(
                "There are no curves. Give a list of lists of values, a file, or a study of which "
                "at least one trial was trained to its end."
            )

    @property
    def best_value(self) -> float:
        """The best value that a configuration has after its whole training; NaN is the worst."""
        return min((each.last_value for each in self.curves), key=self.objective.rank)

    @classmethod
    def of_study(cls, database: Database, study: Study) -> Self:
        """
        Read the curves of the trials that were trained to their end.

        Other trials, such as those that a scheduler stopped or that failed, are left out: what they
        would have reported later is unknown. Also left out are invalidated trials, trials without a
        result, trials that began from the checkpoint of another trial or of a person (their first
        steps are missing), and trials whose params a person has changed (their values come from
        other params).

        Raises:
            NotAllowed: There is no trial with a curve.
        """
        trials = [trial for page in trial_pages(database, study) for trial in page]
        begun_later = trials_begun_from_checkpoints(database, study)
        whole = {
            one.number: one
            for one in trials
            if one.reason in TRAINED_TO_END
            and one.last_step
            and not one.changed
            and one.number not in begun_later
        }
        if not whole:
            raise NotAllowed(
                f"Study {study.name!r} has no trial that was trained from the first step to its "
                "end, so there are no curves to simulate with. Run the study without a scheduler "
                "that stops trials."
            )
        rows = (row for page in result_pages(database, study) for row in page)
        curves = []
        for number, of_trial in groupby(rows, key=lambda row: row.number):
            if number in whole:
                results = [(row.step, row.value) for row in of_trial]
                curves.append(_curve_of_results(results, whole[number]))
        return cls(study.objective, tuple(curves), study.space, len(trials) - len(curves))

    @classmethod
    def load(cls, path: str | Path, *, metric: str | None = None, mode: str | None = None) -> Self:
        """
        Read a file of curves; its form is in this module's docstring.

        Args:
            metric: The metric, for a file without `metric`. None takes the key of the first entry's
                only list, or "values" if that entry does not have exactly one list.
            mode: The mode, for a file without `mode`. None takes "min".

        Raises:
            InvalidSpec: The file cannot be read, or has another form.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidSpec(f"Cannot read the curves in {str(path)!r}: {error}.") from None
        if not isinstance(found, dict) or not isinstance(found.get("curves"), list):
            raise InvalidSpec(
                f"{str(path)!r} has no list `curves`; give a file such as "
                '{"metric": "error", "mode": "min", "curves": [{"values": [0.9, 0.5]}]}.'
            )
        name = found.get("metric", metric) or _only_list(found["curves"]) or _VALUES
        space = found.get("space")
        return cls(
            Objective.read(name, found.get("mode", mode or Mode.MIN)),
            tuple(_curve_of_entry(one, name, number) for number, one in enumerate(found["curves"])),
            None if space is None else Space.from_json(space),
        )

    def to_json(self, *, digits: int = 17) -> dict[str, Any]:
        """
        Return the curves in the form of a file of curves.

        Args:
            digits: How many significant digits of each float to keep; 17 digits are exact.
        """
        entries = [_entry(curve, digits) for curve in self.curves]
        space = {} if self.space is None else {"space": self.space.to_json()}
        objective = {"metric": self.objective.metric, "mode": str(self.objective.mode)}
        return {**objective, **space, "curves": entries}


def read_curves(
    curves: Any, *, metric: str | None = None, mode: str | None = None
) -> RecordedCurves:
    """
    Read curves from a file, or from a collection in memory.

    Args:
        curves: A path; a list of lists of values; a list of dicts with the keys of a file's entries
            (see this module's docstring); or a dict whose keys are params, each a tuple of pairs
            such as (("lr", 0.1), ("width", 64)), and whose values are lists of values. A
            `RecordedCurves` is returned unchanged.

    Raises:
        InvalidSpec: The curves have none of these forms.
    """
    if isinstance(curves, RecordedCurves):
        return curves
    if isinstance(curves, str | Path):
        return RecordedCurves.load(curves, metric=metric, mode=mode)
    name = metric or _VALUES
    objective = Objective.read(name, mode or Mode.MIN)
    if isinstance(curves, Mapping):
        entries: list[Any] = [
            {"params": params, _VALUES: values} for params, values in curves.items()
        ]
    elif isinstance(curves, Iterable):
        entries = list(curves)
    else:
        raise InvalidSpec(
            f"The curves are {curves!r}; give a study, the path of a JSON file, or a list with a "
            "list of values for each configuration."
        )
    return RecordedCurves(
        objective, tuple(_curve_of_entry(one, name, number) for number, one in enumerate(entries))
    )


def _curve_of_results(results: Sequence[tuple[int, float]], trial: ListedTrial) -> Curve:
    steps, values = zip(*results, strict=True)
    step_s = None if trial.duration_s is None else trial.duration_s / len(results)
    return Curve.read(values, steps=steps, params=trial.params, step_s=step_s)


def _curve_of_entry(entry: Any, metric: str, number: int) -> Curve:
    subject = f"Curve {number}"
    if not isinstance(entry, Mapping):
        if isinstance(entry, str) or not isinstance(entry, Iterable):
            raise InvalidSpec(
                f"{subject} is {entry!r}; give a list of values, or a dict with the key 'values'."
            )
        return Curve.read(entry, subject=subject)
    values = entry.get(_VALUES, entry.get(metric))
    if values is None:
        keys = sorted(map(str, entry))
        raise InvalidSpec(f"{subject} has neither {_VALUES!r} nor {metric!r}; its keys are {keys}.")
    params = next((entry[name] for name in _PARAMS if name in entry), None)
    return Curve.read(
        values,
        steps=entry.get("steps"),
        params=params,
        step_s=entry.get("step_s"),
        subject=subject,
    )


def _only_list(entries: Sequence[Any]) -> str | None:
    """Return the key of the first entry's list; None if the entry has no list, or several."""
    first = entries[0] if entries and isinstance(entries[0], dict) else {}
    names = [name for name, value in first.items() if isinstance(value, list)]
    return names[0] if len(names) == 1 else None


def _entry(curve: Curve, digits: int) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if curve.params:
        entry["params"] = _rounded(curve.params, digits)
    entry[_VALUES] = _rounded(curve.values, digits)
    if curve.steps != tuple(range(1, len(curve.steps) + 1)):
        entry["steps"] = list(curve.steps)
    if curve.step_s is not None:
        entry["step_s"] = _rounded(curve.step_s, digits)
    return entry


def _rounded(value: Any, digits: int) -> Any:
    """Round the floats in params or in a list to some significant digits."""
    if isinstance(value, Mapping):
        return {name: _rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
