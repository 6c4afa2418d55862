"""Find a study's best trial by any metric, mode and scope, as Ray Tune's `get_best_trial` does."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter

from msgspec import Struct

from studydb.db import Database
from studydb.domain.errors import InvalidSpec, NoResults
from studydb.domain.listed_rows import PagedResult
from studydb.domain.objective import Objective
from studydb.domain.records import Study
from studydb.domain.text.names import check_metric_name
from studydb.operations.pages import result_pages
from studydb.operations.reads import best_trials

SCOPES = {"all": 0, "last": 1, "avg": 0, "last-5-avg": 5, "last-10-avg": 10}
"""
For each scope, how many of a trial's last values of the metric are used (0: all values). Scope
"all" takes the best of these values, "last" takes the last value, and the other scopes take the
mean.
"""


class BestBy(Struct, frozen=True):
    """The best trial by an objective and a scope."""

    objective: Objective
    scope: str
    number: int
    value: float


def find_best(
    database: Database, study: Study, metric: str | None, mode: str | None, scope: str
) -> BestBy:
    """
    Find a study's best trial.

    For the study's own metric and mode with the scope "all", only the rows of trials are read,
    because each row has its trial's best value. Otherwise all results are read.

    Args:
        metric, mode: None stands for the study's own metric or mode.
        scope: See `SCOPES`.

    Raises:
        NoResults: Every trial's value of the metric in this scope is missing or NaN; invalidated
            trials do not count.
        InvalidSpec: The scope or the mode is unknown, or the mode is missing although the metric is
            not the study's.
        InvalidName: The metric's name breaks a rule for names.
    """
    wanted = _read_wanted(study.objective, metric, mode)
    if not isinstance(scope, str) or scope not in SCOPES:
        raise InvalidSpec(f"scope is {scope!r}; give one of {', '.join(map(repr, SCOPES))}.")
    if scope == "all" and wanted == study.objective:
        (best,) = best_trials(database, study)
        assert best.best_value is not None
        return BestBy(wanted, scope, best.number, best.best_value)
    return best_by(study, wanted, scope, result_pages(database, study))


def _read_wanted(own: Objective, metric: str | None, mode: str | None) -> Objective:
    name = own.metric if metric is None else check_metric_name(metric)
    if mode is None and name != own.metric:
        raise InvalidSpec(
            f"mode is missing: say whether the best {name!r} is its 'min' or its 'max'. Only the "
            f"mode of the study's own metric, {own.metric!r}, is known."
        )
    return Objective.read(name, own.mode if mode is None else mode)


def best_by(
    study: Study, wanted: Objective, scope: str, pages: Iterable[Sequence[PagedResult]]
) -> BestBy:
    """
    Find the best trial; NaN is never best. Of equal trials, the one with the lowest number is best.

    Args:
        pages: The live results, ordered by trial and step.

    Raises:
        NoResults: Every trial's value of the metric in this scope is missing or NaN.
    """
    own, best = study.objective, None
    seen: set[str] = set()
    for number, rows in groupby(chain.from_iterable(pages), key=attrgetter("number")):
        values = []
        for row in rows:
            value = row.value if wanted.metric == own.metric else _other_metric(row, wanted.metric)
            seen.update(row.metrics or ())
            if value is not None:
                values.append(value)
        value = value_in_scope(values, wanted, scope)
        if not math.isnan(value):
            found = (wanted.score(value), number, value)
            best = found if best is None else min(best, found)
    if best is None:
        known = ", ".join(map(repr, sorted({own.metric, *seen})))
        within = "" if scope == "all" else f" in the scope {scope!r}"
        raise NoResults(
            f"No trial of study {study.name!r} has a value of {wanted.metric!r}{within} yet; NaN "
            f"and invalidated trials do not count. The metrics are: {known}."
        )
    return BestBy(wanted, scope, best[1], best[2])


def value_in_scope(values: Sequence[float], objective: Objective, scope: str) -> float:
    """
    Return the value by which a scope ranks a trial; NaN if there is none.

    NaN is left out of means and of the best value, as in a trial's `metric_summary`. The last value
    may be NaN.

    Args:
        values: The trial's values of the metric, in the order of the steps.
    """
    counted = values[-SCOPES[scope] :]
    if scope == "last":
        return counted[-1] if counted else math.nan
    numbers = [value for value in counted if not math.isnan(value)]
    if not numbers:
        return math.nan
    return min(numbers, key=objective.score) if scope == "all" else _mean(numbers)


def _mean(numbers: Sequence[float]) -> float:
    if infinite := [value for value in numbers if math.isinf(value)]:
        return sum(infinite)  # infinite, or NaN if +Inf and -Inf occur
    return math.fsum(value / len(numbers) for value in numbers)  # the plain sum could overflow


def _other_metric(row: PagedResult, metric: str) -> float | None:
    value = (row.metrics or {}).get(metric)
    return float(value) if isinstance(value, int | float) else None
