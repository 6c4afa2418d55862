"""
A stop rule for plateaus: it ends a trial, or the whole study, when a metric no longer changes.

The definitions are those of Ray Tune's `TrialPlateauStopper` and `ExperimentPlateauStopper`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from studydb.domain.canonical import is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result, value_of
from studydb.domain.objective import Objective
from studydb.domain.specs.spec import Spec, suggesting_options
from studydb.domain.text.names import check_metric_name

STD_OF_TRIAL, STD_OF_STUDY = 0.01, 0.001
_FEWEST = 2


class BestValues(NamedTuple):
    """
    What a rule for the whole study remembers of all results that were stored so far.

    Attributes:
        values: The best `top` values, best first.
        in_a_row: For how many results in a row, up to the last result, `values` have been a
            plateau.
    """

    values: tuple[float, ...] = ()
    in_a_row: int = 0


def read_best_values(stored: Any) -> tuple[BestValues, ...]:
    """
    Read a study's stored `BestValues`, one for each of its rules that stop the whole study.

    Returns:
        () if none are stored, or if they cannot be read.
    """
    try:
        return tuple(BestValues(tuple(map(float, values)), int(n)) for values, n in stored or ())
    except (TypeError, ValueError):
        return ()


@suggesting_options
@dataclass(frozen=True)
class Plateau(Spec):
    """
    Stop a trial whose metric no longer changes; with `top`, stop the study.

    A trial is stopped if the standard deviation of its last `num_results` values (of all its
    values, if it has fewer) is below `std`. A study is stopped if the standard deviation of the
    best `top` values of all results is at most `std`. With `patience`, this must hold after each of
    the last `patience` results.

    Attributes:
        std: By default 0.01 for a trial and 0.001 for a study.
        grace_period: A trial with fewer results than this is not stopped.
        threshold: A trial whose last value is worse than this is not stopped.
        mode: "min" or "max", for `threshold` and `top`; by default the study's mode.
    """

    metric: str
    std: float | None = None
    num_results: int = 4
    grace_period: int = 4
    threshold: float | None = None
    top: int | None = None
    patience: int = 0
    mode: str | None = None

    def _check(self) -> None:
        check_metric_name(self.metric)
        if self.std is not None and not self.std >= 0:
            raise InvalidSpec(f"Plateau.std is {self.std}; it must be 0 or more.")
        if self.num_results < _FEWEST or self.grace_period < 0:
            raise InvalidSpec(
                "Plateau needs num_results of 2 or more, and no negative grace_period."
            )
        if self.top is not None and (self.top < 1 or self.patience < 0):
            raise InvalidSpec("Plateau needs a top of 1 or more, and no negative patience.")
        if self.top is not None and self.threshold is not None:
            raise InvalidSpec(
                "A Plateau with top stops the study; threshold is for trials. Give one of them."
            )
        if self.top is None and self.patience:
            raise InvalidSpec("Plateau.patience counts results of the study; give top, too.")
        if self.mode not in (None, *Mode):
            raise InvalidSpec(f"Plateau.mode is {self.mode!r}; it must be 'min' or 'max'.")

    @property
    def needs_history(self) -> bool:
        """Whether the rule compares a result with earlier results of the trial."""
        return self.top is None

    def hit(self, history: Sequence[Result], n_results: int, *, objective: Objective) -> bool:
        """
        Whether the last result of a trial hits the rule; always False if `top` is given.

        Args:
            history: The trial's last results: at least `num_results` of them, or all if the trial
                has fewer.
            n_results: The number of all live results of the trial.
        """
        if self.top is not None or n_results < self.grace_period:
            return False
        values = [value_of(each, self.metric, objective) for each in history[-self.num_results :]]
        if not all(map(is_number, values)) or self._is_worse_than_threshold(values[-1], objective):
            return False
        most = STD_OF_TRIAL if self.std is None else self.std
        return standard_deviation(values) < most

    def may_hit(self, recent: Sequence[Result], *, objective: Objective) -> bool:
        """
        Whether the last result may hit the rule, judged by the results of this attempt alone.

        The answer is always False if `top` is given.

        Args:
            recent: The last results of this attempt, up to `num_results`.
        """
        if self.top is not None:
            return False
        is_short = len(recent) < self.num_results  # earlier attempts may have the missing ones
        return is_short or self.hit(recent, self.grace_period, objective=objective)

    def _is_worse_than_threshold(self, value: float, objective: Objective) -> bool:
        if self.threshold is None:
            return False
        is_min = self._mode(objective) is Mode.MIN
        return value > self.threshold if is_min else value < self.threshold

    def _mode(self, objective: Objective) -> Mode:
        return objective.mode if self.mode is None else Mode(self.mode)

    def after(
        self, best: BestValues, results: Iterable[Result], *, objective: Objective
    ) -> tuple[BestValues, bool]:
        """
        Add results to the study's best values, and tell whether one of the results stops the study.

        Results whose value is missing, not a number or NaN are left out.
        """
        stops = False
        for result in results:
            value = value_of(result, self.metric, objective)
            if is_number(value) and not math.isnan(value):
                best = self._with_value(best, value, objective)
                stops = stops or (best.in_a_row > 0 and best.in_a_row >= self.patience)
        return best, stops

    def _with_value(self, best: BestValues, value: float, objective: Objective) -> BestValues:
        assert self.top is not None
        is_max = self._mode(objective) is Mode.MAX
        values = tuple(sorted((*best.values, value), reverse=is_max)[: self.top])
        most = STD_OF_STUDY if self.std is None else self.std
        has_plateau = len(values) == self.top and standard_deviation(values) <= most
        return BestValues(values, best.in_a_row + 1 if has_plateau else 0)

    def __str__(self) -> str:
        arguments = (f"{name}={value}" for name, value in self.options().items())
        return f"Plateau({', '.join(arguments)})"

    def options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, and the metric."""
        plain = Spec.options(self)
        return {name: value for name, value in plain.items() if value != _DEFAULTS.get(name, plain)}


_DEFAULTS: dict[str, Any] = {
    name: getattr(Plateau, name) for name in Plateau.arguments() if name != "metric"
}


def standard_deviation(values: Sequence[float]) -> float:
    """Return what numpy's `std` returns; NaN if a value is not finite, infinity at an overflow."""
    if not all(map(math.isfinite, values)):
        return math.nan
    try:
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    except OverflowError:
        return math.inf
