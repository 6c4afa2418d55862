"""
Judges a model's trials: by thresholds, then by asynchronous successive halving on plain lists.

As in Ray Tune, the cutoff is numpy's percentile of a rung's values. Here NaN also stops a trial.
"""

import math
import operator
from typing import Any

import numpy as np

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Mode, Reason
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy

COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class ModelJudge:
    """
    Judges results as a study's rules and scheduler would.

    Attributes:
        rungs: The entries at each milestone, in order of arrival.
    """

    def __init__(self, spec: NewStudy) -> None:
        self._spec, self._asha = spec, spec.scheduler.to_json()
        self.rungs: dict[int, list[dict[str, Any]]] = {step: [] for step in self._milestones()}

    def judge(self, number: int, attempt: int, after: int, result: Result) -> Verdict | None:
        """The verdict on a result, the next after step `after`; None if the trial continues."""
        for rule in self._spec.rules:
            value = result.step if rule.metric == "training_iteration" else result.value
            if COMPARE[rule.op](value, rule.bound):
                return Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        due = self.next_decision(after)
        if due is None or result.step < due:
            return None
        if result.step >= self._max_t:
            return Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.SCHEDULER)
        entries = self.rungs[max(step for step in self.rungs if step <= result.step)]
        if any(entry["number"] == number for entry in entries):
            return None
        entries.append(self._entry(entries, result) | {"number": number, "attempt": attempt})
        stops = entries[-1]["action"] is Action.STOP
        return Verdict(Action.STOP, Reason.EARLY_STOPPED, DecidedBy.SCHEDULER) if stops else None

    def _entry(self, entries: list[dict[str, Any]], result: Result) -> dict[str, Any]:
        """Return a new entry; its action is STOP for NaN, and for a score above the cutoff."""
        cutoff = self._cutoff([entry["score"] for entry in entries if entry["ranked"]])
        score, is_nan = self.score(result.value), math.isnan(result.value)
        stops = is_nan or (cutoff is not None and score > cutoff)
        return {
            "ordinal": len(entries),
            "step": result.step,
            "value": "NaN" if is_nan else result.value,
            "score": score,
            "ranked": not is_nan,
            "action": Action.STOP if stops else Action.CONTINUE,
            "cutoff": None if cutoff is None or math.isnan(cutoff) else cutoff,
        }

    def _cutoff(self, scores: list[float]) -> float | None:
        if not scores:
            return None
        with np.errstate(invalid="ignore"):
            return -float(np.percentile([-score for score in scores], self._percentage))

    def cut_rank(self, n_ranked: int) -> int:
        """The rank of a rung's cut, counted from the worst entry (0)."""
        return math.floor((n_ranked - 1) * (self._percentage / 100)) if n_ranked else 0

    @property
    def _percentage(self) -> float:
        return float((1 - 1 / self._asha["reduction_factor"]) * 100)

    @property
    def _max_t(self) -> float:
        return float(self._asha.get("max_t", math.inf))

    def _milestones(self) -> list[int]:
        steps: list[int] = []
        step = self._asha.get("grace_period", math.inf)
        while step < self._max_t:
            steps.append(step)
            step *= self._asha["reduction_factor"]
        return steps

    def next_decision(self, step: int) -> int | None:
        """The first milestone after a step, or max_t; None if there is neither."""
        due = [one for one in (*self.rungs, self._max_t) if step < one < math.inf]
        return int(min(due)) if due else None

    def score(self, value: float) -> float:
        """The score of a value: lower is better, NaN is worst."""
        if math.isnan(value):
            return math.inf
        return 0.0 + (value if self._spec.objective.mode is Mode.MIN else -value)
