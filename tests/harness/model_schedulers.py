"""The schedulers of a model besides ASHA, and what free workers do under each of them."""

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.model_clones import release
from harness.model_judging import Judged, ModelJudge, ModelRung, place
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy

if TYPE_CHECKING:
    from harness.model import Model

NONE_KEPT = (-math.inf, -1)


class ModelMedian(ModelJudge):
    """Compares the best value of a trial with the median of the others' means, from lists."""

    def judged_at(self, rung: ModelRung, result: Result, live: Mapping[int, float]) -> Judged:  # noqa: ARG002
        counted = [live[step] for step in sorted(live) if step >= self.options["grace_period"]]
        mean, cutoff = self.score(sum(counted) / len(counted)), None
        if len(rung.scores) >= self.options["min_samples"]:
            cutoff = statistics.median(rung.scores)
        _, best = self.best_of(live)
        assert best is not None
        action = Action.CONTINUE
        if cutoff is not None and self.score(best) > cutoff:
            action = Action.STOP if self.options["hard_stop"] else Action.PAUSE
        return Judged(action, mean if math.isfinite(mean) else None, cutoff, waits=False)

    def next_decision(self, step: int) -> int | None:
        interval = self.options["interval"]
        later = range(max(self.options["grace_period"], step + 1), step + 99)
        return next(one for one in later if one % interval == 0)

    def rung_at(self, step: int) -> int | None:
        interval = self.options["interval"]
        milestone = step - step % interval
        return milestone if milestone >= self.options["grace_period"] else None

    @property
    def milestones(self) -> list[int]:
        return []  # the rungs are made when a trial reaches them


class ModelOneEpoch(ModelJudge):
    """All trials pause at step `i`; then the best of them train on."""

    def __init__(self, spec: NewStudy) -> None:
        super().__init__(spec)
        self.promotes = True

    def judged_at(self, rung: ModelRung, result: Result, live: Mapping[int, float]) -> Judged:  # noqa: ARG002
        score, worst = self.score(result.value), None
        if rung.last_kept not in (None, NONE_KEPT):
            worst = rung.last_kept[0]  # type: ignore[index]
        if math.isnan(result.value):
            return Judged(Action.STOP, score, worst)
        if rung.last_kept is None:
            return Judged(Action.PAUSE, score)
        goes_on = worst is not None and score <= worst
        return Judged(Action.CONTINUE if goes_on else Action.STOP, score, worst)

    @property
    def milestones(self) -> list[int]:
        return [self.options["i"]]


def new_judge(spec: NewStudy) -> ModelJudge:
    kinds = {"MedianStopping": ModelMedian, "OneEpoch": ModelOneEpoch}
    return kinds.get(type(spec.scheduler).__name__, ModelJudge)(spec)


def promote(model: "Model", token: str) -> bool:
    """Do what the scheduler wants of a free worker; tell whether a trial was moved to PENDING."""
    if not model.judge.promotes:
        return False
    while True:
        chosen, closes = _next_work(model)
        _give_up(model)
        if chosen is None and closes and model.status is Status.RUNNING:
            _close(model)
            continue
        may = model.status is Status.RUNNING and model.has_room and not model.runnable
        if chosen is None or not may:
            return False
        _promote(model, token, *chosen)
        return True


def _promote(model: "Model", token: str, step: int, entry: dict[str, Any]) -> None:
    entry |= {"waiting": False, "promoted_at": model.now}
    trial = model.trials[entry["number"]]
    trial.state, trial.paused_by = State.PENDING, None
    data = {"bracket": 0, "step": step, "score": entry["score"]}
    model._record_event("promoted", "scheduler", number=trial.number, token=token, data=data)


def _next_work(model: "Model") -> tuple[tuple[int, dict[str, Any]] | None, bool]:
    """The trial that the scheduler promotes, and whether it closes its rung."""
    judge = model.judge
    paused = {trial.number for trial in model.trials if trial.paused_by == "scheduler"}
    if isinstance(judge, ModelOneEpoch):
        return _one_epoch(model, judge, paused)
    if not judge.end_game:
        return judge.promotable(paused), False
    best_first = sorted(judge.candidates(paused), key=lambda one: one[1]["score"])
    if _spent(model) >= 1 - judge.end_game:
        return next(iter(best_first), None), False
    promoted = judge.promotable(paused)
    if promoted is not None or model.is_open:
        return promoted, False
    return next((one for one in best_first if _is_affordable(model, one[0])), None), False


def _one_epoch(
    model: "Model", judge: ModelOneEpoch, paused: set[int]
) -> tuple[tuple[int, dict[str, Any]] | None, bool]:
    step = judge.options["i"]
    rung = judge.rungs[step]
    waiting = [entry for entry in rung.waiting if entry["number"] in paused]
    if rung.last_kept is not None:
        kept = [entry for entry in waiting if place(entry) <= rung.last_kept]
        return ((step, kept[0]) if kept else None), False
    if model.is_open and _spent(model) < 1 / 2:
        return None, False
    return None, bool(waiting) and all(one >= step for one in _underway(model))


def _spent(model: "Model") -> float:
    most = model.spending.limits.get("max_steps", math.inf)
    return float(min(1.0, model.spending.steps / most))


def _underway(model: "Model") -> list[int]:
    """The last steps of the trials that train or may be claimed."""
    return [
        max(trial.live, default=0)
        for trial in model.trials
        if trial.state in (State.RUNNING, State.PENDING) or trial.paused_by == "study"
    ]


def _is_affordable(model: "Model", step: int) -> bool:
    """Whether the end game of a number of trials may train a trial from a milestone to max_t."""
    judge, underway = model.judge, _underway(model)
    ends = [*judge.milestones, int(judge.max_t)]
    if any(one < ends[0] for one in underway):
        return False
    reached = [len(judge.rungs[end].entries) if end in judge.rungs else 0 for end in ends]
    starts = [0, *ends[:-1]]
    spans = [end - start for start, end in zip(starts, ends, strict=True)]
    factor = judge.options["reduction_factor"]
    usual = sum(reached[0] / factor**k * span for k, span in enumerate(spans))
    trained = sum(n * span for n, span in zip(reached, spans, strict=True))
    to_come = sum(judge.max_t - max(end for end in ends if end <= one) for one in underway)
    if reached[-1] + len(underway) == 0:
        return True
    return bool(trained + to_come + judge.max_t - step <= usual / (1 - judge.end_game))


def _close(model: "Model") -> None:
    judge = model.judge
    step = judge.options["i"]
    rung = judge.rungs[step]
    kept = rung.waiting[: judge.options["top_k"]]
    rung.last_kept = place(kept[-1])
    data = {"bracket": 0, "step": step, "kept": len(kept)}
    model._record_event("rung closed", "scheduler", data=data)


def _give_up(model: "Model") -> None:
    """End the trials that wait at closed rungs and were not kept."""
    for rung in model.judge.rungs.values():
        if rung.last_kept is None:
            continue
        for entry in rung.waiting:
            trial = model.trials[entry["number"]]
            if trial.paused_by == "scheduler" and place(entry) > rung.last_kept:
                entry["waiting"] = False
                trial.state, trial.reason = State.TERMINATED, Reason.GIVEN_UP
                trial.ended_at, trial.paused_by = model.now, None
                release(trial)
        rung.is_over = rung.is_over or not rung.waiting
