"""
Judges a model's trials: by rules, then by asynchronous successive halving on plain lists.

As in Ray Tune, the cutoff is numpy's percentile of a rung's values. Here NaN also stops a trial.
For promotion the rank of the quantile is computed with `Fraction`.
"""

import math
import operator
from collections.abc import Container, Mapping
from fractions import Fraction
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

    def judge(
        self, number: int, attempt: int, after: int, result: Result, *, enters: bool
    ) -> Verdict | None:
        """
        The verdict on the result after step `after`; None if the trial continues.

        Args:
            enters: Whether the scheduler judges the trial; False if it is invalidated.
        """
        for rule in self._spec.rules:
            value = result.step if rule.metric == "training_iteration" else result.value
            if COMPARE[rule.op](value, rule.bound):
                return Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        decided = self._decide(number, attempt, after, result) if enters else None
        if result.is_last:
            return Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.TRIAL)
        return decided

    def _decide(self, number: int, attempt: int, after: int, result: Result) -> Verdict | None:
        due = self.next_decision(after)
        if due is None or result.step < due:
            return None
        if result.step >= self._max_t:
            return Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.SCHEDULER)
        entries = self.rungs[max(step for step in self.rungs if step <= result.step)]
        if any(entry["number"] == number for entry in entries):
            return None
        entries.append(self._entry(entries, result) | {"number": number, "attempt": attempt})
        if result.is_last:
            entries[-1] |= {"action": Action.CONTINUE, "waiting": None}
        action = entries[-1]["action"]
        why = {Action.STOP: Reason.EARLY_STOPPED, Action.PAUSE: Reason.PAUSED}
        return Verdict(action, why[action], DecidedBy.SCHEDULER) if action in why else None

    def _entry(self, entries: list[dict[str, Any]], result: Result) -> dict[str, Any]:
        """
        Return the entry of a result.

        NaN stops the trial. Otherwise the trial pauses if the scheduler promotes trials. If it does
        not, a score above the cutoff stops the trial.
        """
        cutoff = self._cutoff([entry["score"] for entry in entries if entry["ranked"]])
        score, is_nan = self.score(result.value), math.isnan(result.value)
        if self.promotes:
            cutoff = None
        stops = is_nan or (cutoff is not None and score > cutoff)
        pauses = self.promotes and not is_nan
        return {
            "ordinal": len(entries),
            "step": result.step,
            "value": "NaN" if is_nan else result.value,
            "score": score,
            "ranked": not is_nan,
            "action": Action.PAUSE if pauses else Action.STOP if stops else Action.CONTINUE,
            "waiting": True if pauses else None,
            "promoted_at": None,
            "cutoff": None if cutoff is None or math.isnan(cutoff) else cutoff,
        }

    def _cutoff(self, scores: list[float]) -> float | None:
        if not scores:
            return None
        with np.errstate(invalid="ignore"):
            return -float(np.percentile([-score for score in scores], self._percentage))

    def best_of(self, live: Mapping[int, float]) -> tuple[int | None, float | None]:
        """The first step with the best value, and this value; NaN only if all values are NaN."""
        if not live:
            return None, None
        best = min(sorted(live), key=lambda step: (math.isnan(live[step]), self.score(live[step])))
        return best, live[best]

    @property
    def promotes(self) -> bool:
        return bool(self._asha.get("type") == "promotion")

    def promotable(self, paused: Container[int]) -> tuple[int, dict[str, Any]] | None:
        """
        The milestone and the entry of the trial to promote; None if no trial can be promoted.

        Args:
            paused: The numbers of the trials that the scheduler has paused.
        """
        for step, entries in sorted(self.rungs.items(), reverse=True):
            waiting = [one for one in entries if one["waiting"] and one["number"] in paused]
            scores = sorted(one["score"] for one in entries if one["ranked"])
            if not self.promotes or not waiting or len(scores) < 2:
                continue
            best = min(waiting, key=lambda one: (one["score"], one["ordinal"]))
            if best["score"] < math.inf and best["score"] <= self._promotion_cutoff(scores):
                return step, best
        return None

    def _promotion_cutoff(self, scores: list[float]) -> float:
        rank = Fraction(len(scores) - 1) / Fraction(self._asha["reduction_factor"])
        lower, upper = scores[math.floor(rank)], scores[math.ceil(rank)]
        if math.isinf(lower) or math.isinf(upper):
            return lower
        return lower + (upper - lower) * float(rank % 1)

    def waits(self, number: int) -> bool:
        entries = (one for entries in self.rungs.values() for one in entries)
        return any(one["number"] == number and one["waiting"] for one in entries)

    def leave_rungs(self, number: int) -> None:
        """Record at every rung that a trial does not wait there."""
        for entries in self.rungs.values():
            for entry in entries:
                if entry["number"] == number and entry["waiting"]:
                    entry["waiting"] = False

    def unrank(self, number: int) -> None:
        """Take the entries of a trial out of the ranking of every rung."""
        for entries in self.rungs.values():
            for entry in entries:
                entry["ranked"] = entry["ranked"] and entry["number"] != number

    def rerank(self, number: int) -> None:
        """Put the entries of a trial back into the ranking, except NaN."""
        for entries in self.rungs.values():
            for entry in entries:
                if entry["number"] == number:
                    entry["ranked"] = entry["value"] != "NaN"

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
