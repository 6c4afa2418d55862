"""
A model of stop rules and of ASHA, on plain lists; the rules judge before ASHA.

As in Ray Tune, the cutoff is numpy's percentile of a rung's values, unless ASHA's option `rule` is
"syne_tune". Unlike in Ray Tune, NaN stops a trial. For promotion the rank of the quantile is
computed with `Fraction`. `model_schedulers` and `model_closings` have the other schedulers.
"""

import math
import operator
from collections.abc import Container, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Mode, Reason
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy

RungId = tuple[int, int]
"""The bracket of a rung, and its milestone."""

COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

VERDICTS = {Action.STOP: Reason.EARLY_STOPPED, Action.PAUSE: Reason.PAUSED}


class Judged(NamedTuple):
    """
    What a scheduler decides at a rung.

    Attributes:
        score: The score that the rung records; None if it records nothing.
        waits: Whether the trial waits at the rung if it pauses.
    """

    action: Action
    score: float | None
    cutoff: float | None = None
    waits: bool = True


class ModelRung:
    """
    A rung, with its entries in order of arrival.

    Attributes:
        last_kept: The score and the ordinal of the worst trial that was kept when the rung closed;
            (-inf, -1) if no trial was kept. None while the rung is open.
        is_over: Whether the rung has closed, and no trial waits there.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.last_kept: tuple[float, int] | None = None
        self.is_over = False

    @property
    def scores(self) -> list[float]:
        """The scores of the ranked entries, best first."""
        return sorted(entry["score"] for entry in self.entries if entry["ranked"])

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """The entries whose trials wait, best first; equal entries in order of arrival."""
        return sorted((entry for entry in self.entries if entry["waiting"]), key=place)


def place(entry: Mapping[str, Any]) -> tuple[float, int]:
    return entry["score"], entry["ordinal"]


class ModelJudge:
    """
    Judges results as a study's rules and its scheduler (FIFO, ASHA, or ASHA in user code) do.

    Attributes:
        rungs: The rungs by bracket and milestone.
        promotes: Whether trials wait at rungs.
    """

    def __init__(self, spec: NewStudy) -> None:
        self._spec = spec
        given = spec.scheduler.to_json()
        # The stored form of a custom scheduler nests its options.
        self.options: dict[str, Any] = given.get("options", given)
        self.rungs = {(0, step): ModelRung() for step in self.milestones(0)}
        self.promotes = self.options.get("type") == "promotion"

    def judge(
        self,
        number: int,
        attempt: int,
        after: int,
        result: Result,
        live: Mapping[int, float],
        *,
        bracket: int,
        enters: bool,
    ) -> Verdict | None:
        """
        Judge a result, and record it at its rung; return the verdict, None if the trial continues.

        Args:
            after: The step of the attempt's previous result; for the attempt's first result, the
                step of the restored checkpoint, or 0.
            live: The trial's values by step, this result included.
            enters: Whether the scheduler judges the trial; False if it is invalidated.
        """
        for rule in self._spec.rules:
            value = result.step if rule.metric == "training_iteration" else result.value
            if COMPARE[rule.op](value, rule.bound):
                return Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        due = self.next_decision(bracket, after)
        is_due = due is not None and result.step >= due
        decided = None
        if enters and is_due:
            rung_id = self.rung_at(bracket, result.step)
            decided = self._decide(number, rung_id, attempt, result, live)
        if result.is_last:
            return Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.TRIAL)
        return decided

    def _decide(
        self,
        number: int,
        rung_id: RungId | None,
        attempt: int,
        result: Result,
        live: Mapping[int, float],
    ) -> Verdict | None:
        is_complete = result.step >= self.max_t
        rung = None if rung_id is None else self.rungs.setdefault(rung_id, ModelRung())
        if rung is not None and all(entry["number"] != number for entry in rung.entries):
            judged = self.judged_at(rung, result, live)
            if is_complete:
                judged = Judged(Action.STOP, self.score(result.value))
            if judged.score is not None:
                rung.entries.append(
                    _entry(rung, judged, result) | {"number": number, "attempt": attempt}
                )
            if not is_complete and judged.action in VERDICTS:
                return Verdict(judged.action, VERDICTS[judged.action], DecidedBy.SCHEDULER)
        if is_complete:
            return Verdict(Action.STOP, Reason.COMPLETED, DecidedBy.SCHEDULER)
        return None

    # --- the scheduler

    def bracket_of(self, draw: int) -> int:  # noqa: ARG002
        """The bracket of a draw's trial; for an enqueued trial, `draw` is the trial's number."""
        return 0

    def rung_at(self, bracket: int, step: int) -> RungId | None:
        """The rung that a report at a step may enter."""
        if step >= self.max_t:
            return (bracket, int(self.max_t)) if self.end_game else None
        reached = [one for one in self.milestones(bracket) if one <= step]
        return (bracket, max(reached)) if reached else None

    def judged_at(self, rung: ModelRung, result: Result, live: Mapping[int, float]) -> Judged:  # noqa: ARG002
        """
        Judge a report at a rung.

        NaN stops the trial. A scheduler that promotes trials pauses the trial at any other value.
        Any other scheduler stops the trial if its score is above the cutoff.
        """
        score = self.score(result.value)
        if self.promotes:
            is_nan = math.isnan(result.value)
            return Judged(Action.STOP if is_nan else Action.PAUSE, score)
        cutoff = self._cutoff(rung.scores)
        stops = math.isnan(result.value) or (cutoff is not None and score > cutoff)
        return Judged(Action.STOP if stops else Action.CONTINUE, score, cutoff)

    def _cutoff(self, scores: list[float]) -> float | None:
        if not scores:
            return None
        if self.options.get("rule") == "syne_tune":
            n, share = len(scores) + 1, 1 / self.options["reduction_factor"]
            most = max(better for better in range(n) if better / n <= share)
            return scores[most] if most < len(scores) else None
        with np.errstate(invalid="ignore"):
            return -float(np.percentile([-score for score in scores], self._percentage))

    def best_of(self, live: Mapping[int, float]) -> tuple[int | None, float | None]:
        """The first step with the best value, and this value; NaN only if all values are NaN."""
        if not live:
            return None, None
        best = min(sorted(live), key=lambda step: (math.isnan(live[step]), self.score(live[step])))
        return best, live[best]

    def promotable(self, paused: Container[int]) -> tuple[RungId, dict[str, Any]] | None:
        """
        The rung and the entry of the trial to promote; None if no trial can be promoted.

        Args:
            paused: The numbers of the trials that the scheduler has paused.
        """
        for rung_id, entry in self.candidates(paused):
            scores = self.rungs[rung_id].scores
            if len(scores) > 1 and entry["score"] <= self._promotion_cutoff(scores):
                return rung_id, entry
        return None

    def candidates(self, paused: Container[int]) -> list[tuple[RungId, dict[str, Any]]]:
        """For each rung, highest first: the best waiting trial of `paused`, unless its score is inf."""
        found = []
        for rung_id, rung in sorted(self.rungs.items(), reverse=True):
            best = next((one for one in rung.waiting if one["number"] in paused), None)
            if self.promotes and best is not None and best["score"] < math.inf:
                found.append((rung_id, best))
        return found

    def _promotion_cutoff(self, scores: list[float]) -> float:
        rank = Fraction(len(scores) - 1) / Fraction(self.options["reduction_factor"])
        lower, upper = scores[math.floor(rank)], scores[math.ceil(rank)]
        if math.isinf(lower) or math.isinf(upper):
            return lower
        return lower + (upper - lower) * float(rank % 1)

    def asks_after(self, verdict: Verdict, result: Result) -> str | None:
        """The resources that a trial asks for once the scheduler has paused it; None: no change."""
        is_paused = verdict.by is DecidedBy.SCHEDULER and verdict.action is Action.PAUSE
        if not (is_paused and self.options.get("grows")):
            return None
        return "gpus=1" if self.score(result.value) < 0.3 else "cpus=1"

    # --- entries

    def waits(self, number: int) -> bool:
        return any(one["number"] == number for rung in self.rungs.values() for one in rung.waiting)

    def leave_rungs(self, number: int) -> None:
        """Record that a trial waits at no rung any more."""
        for entry in self._entries_of(number):
            entry["waiting"] = False if entry["waiting"] else entry["waiting"]

    def unrank(self, number: int) -> None:
        """Take the entries of a trial out of the ranking of every rung."""
        for entry in self._entries_of(number):
            entry["ranked"] = False

    def rerank(self, number: int) -> None:
        """Put the entries of a trial back into the ranking, except NaN."""
        for entry in self._entries_of(number):
            entry["ranked"] = entry["value"] != "NaN"

    def _entries_of(self, number: int) -> list[dict[str, Any]]:
        entries = (entry for rung in self.rungs.values() for entry in rung.entries)
        return [entry for entry in entries if entry["number"] == number]

    def cut_rank(self, n_ranked: int) -> int:
        """The rank of a rung's cut, counted from the worst entry (0)."""
        return math.floor((n_ranked - 1) * (self._percentage / 100)) if n_ranked else 0

    @property
    def _percentage(self) -> float:
        factor = self.options.get("reduction_factor", 2)
        return float((1 - 1 / factor) * 100)

    # --- milestones

    @property
    def max_t(self) -> float:
        return float(self.options.get("max_t", math.inf))

    @property
    def end_game(self) -> float:
        """The share of a limit of the study that the end game takes; 0 for no end game."""
        return float(self.options.get("end_game", 0.0))

    def milestones(self, bracket: int) -> list[int]:  # noqa: ARG002
        """The milestones of a bracket, ascending."""
        steps: list[int] = []
        step = self.options.get("grace_period", math.inf)
        while step < self.max_t:
            steps.append(step)
            step *= self.options["reduction_factor"]
        return steps

    def next_decision(self, bracket: int, step: int) -> int | None:
        """The first milestone after a step, or max_t; from max_t on, the next step; else None."""
        if step >= self.max_t:
            return step + 1
        due = [one for one in (*self.milestones(bracket), self.max_t) if step < one < math.inf]
        return int(min(due)) if due else None

    def score(self, value: float) -> float:
        """The score of a value: lower is better, NaN is worst."""
        if math.isnan(value):
            return math.inf
        return 0.0 + (value if self._spec.objective.mode is Mode.MIN else -value)


def _entry(rung: ModelRung, judged: Judged, result: Result) -> dict[str, Any]:
    """The row of an entry; a trial that has reported its last result does not wait at the rung."""
    is_nan, cutoff = math.isnan(result.value), judged.cutoff
    waits = judged.action is Action.PAUSE and judged.waits and not result.is_last
    return {
        "ordinal": len(rung.entries),
        "step": result.step,
        "value": "NaN" if is_nan else result.value,
        "score": judged.score,
        "ranked": not is_nan,
        "action": Action.CONTINUE if result.is_last else judged.action,
        "waiting": waits or None,
        "promoted_at": None,
        "cutoff": None if cutoff is None or math.isnan(cutoff) else cutoff,
    }
