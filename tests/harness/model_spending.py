"""What the trials of a model spend, and which limit is reached."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from harness.model_rows import ModelTrial
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy
from studydb.domain.text.display import duration_text

SPENT = Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.LIMIT)
TIMED_OUT = Verdict(Action.STOP, Reason.TIMED_OUT, DecidedBy.LIMIT)


class ModelSpending:
    """
    What the trials of a study have spent, and the limits of the study.

    Attributes:
        limits: The limits that the study has, by name; a person may change them.
    """

    def __init__(self, spec: NewStudy) -> None:
        names = ("cost_limit", "max_steps", "total_time_limit_s", "trial_time_limit_s")
        given = {name: getattr(spec, name) for name in names}
        self.limits: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        self.cost = self.time_s = 0.0
        self.steps = 0

    @property
    def _has_sums(self) -> bool:
        return bool(self.limits.keys() - {"trial_time_limit_s"})

    @property
    def _has_time_limit(self) -> bool:
        return bool(self.limits.keys() & {"total_time_limit_s", "trial_time_limit_s"})

    def add(self, trials: Iterable[ModelTrial], results: Sequence[Result], now: float) -> None:
        """
        Add the running time of trials until now, and the steps and cost of stored results.

        Without a limit on all trials together, no sums are kept. Costs are summed up only with
        `cost_limit`, and times only with a limit of time. For the time since a trial was last
        counted, at most the length of the trial's lease is added.
        """
        for trial in trials if self._has_time_limit else ():
            began = trial.attempts[-1].started_at
            until = trial.running_until
            since = began if until is None else max(until, began)
            assert trial.lease_s is not None
            elapsed_s = min(max(0.0, now - since), trial.lease_s)
            trial.running_s = (trial.running_s or 0.0) + elapsed_s
            trial.running_until = now
            self.time_s += elapsed_s if self._has_sums else 0.0
        if self._has_sums:
            self.steps += len(results)
        if "cost_limit" in self.limits:
            self.cost += sum(one.value for one in results if 0 < one.value < math.inf)

    def is_timed_out(self, trial: ModelTrial) -> bool:
        limit_s = self.limits.get("trial_time_limit_s", math.inf)
        return (trial.running_s or 0.0) >= float(limit_s)

    def reached(self) -> str | None:
        """Which limit is reached, in the words of the study's row; None if no limit is reached."""
        limits = self.limits
        if "cost_limit" in limits and self.cost >= limits["cost_limit"].most:
            used, most = f"{self.cost:.6g}", f"{limits['cost_limit'].most:g}"
            return f"cost_limit is reached ({used} of {most} loss)"
        if "max_steps" in limits and self.steps >= limits["max_steps"]:
            return f"max_steps is reached ({self.steps:g} of {limits['max_steps']:g} steps)"
        if "total_time_limit_s" in limits and self.time_s >= limits["total_time_limit_s"]:
            used, most = map(duration_text, (self.time_s, limits["total_time_limit_s"]))
            return f"total_time_limit_s is reached ({used} of {most} of training)"
        return None
