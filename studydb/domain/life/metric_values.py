"""The value of a metric in a result."""

from typing import Any

from studydb.domain.metrics import STEP, Result
from studydb.domain.objective import Objective


def value_of(result: Result, metric: str, objective: Objective) -> Any:
    """Return a metric's value, for `training_iteration` the step; None if the metric is missing."""
    if metric == STEP:
        return result.step
    return result.value if metric == objective.metric else result.metrics.get(metric)
