"""
A model of what free workers do under each scheduler, and a model of `MedianStopping`.

`model_judging` has ASHA, `model_closings` the synchronous schedulers.
"""

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.model_closings import (
    ModelClosing,
    ModelHyperBand,
    ModelOneEpoch,
    ModelSynchronous,
    Waiting,
    can_be_claimed,
    close,
    give_up,
    spent,
    underway,
)
from harness.model_judging import Judged, ModelJudge, ModelRung, RungId
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import State, Status
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy

if TYPE_CHECKING:
    from harness.model import Model


class ModelMedian(ModelJudge):
    """Median stopping: compares a trial's best value with the median of other trials' means."""

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

    def next_decision(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        interval = self.options["interval"]
        later = range(max(self.options["grace_period"], step + 1), step + 99)
        return next(one for one in later if one % interval == 0)

    def rung_at(self, bracket: int, step: int) -> RungId | None:
        interval = self.options["interval"]
        milestone = step - step % interval
        return (bracket, milestone) if milestone >= self.options["grace_period"] else None

    def milestones(self, bracket: int) -> list[int]:  # noqa: ARG002
        return []  # the rungs are made when a trial reaches them


def new_judge(spec: NewStudy) -> ModelJudge:
    kinds = {
        "MedianStopping": ModelMedian,
        "OneEpoch": ModelOneEpoch,
        "HyperBand": ModelHyperBand,
    }
    return kinds.get(type(spec.scheduler).__name__, ModelJudge)(spec)


def promote(model: "Model", token: str, worker: str) -> bool:
    """Do what the scheduler wants of a free worker; tell whether a trial was moved to PENDING."""
    if not model.judge.promotes:
        return False
    while True:
        chosen, closing = _next_work(model, worker)
        give_up(model)
        if closing is not None and model.status is Status.RUNNING:
            close(model, closing)
            continue
        may = model.status is Status.RUNNING and model.has_room
        if chosen is None or not may or model.resources.startable(worker, model.runnable):
            return False
        _promote(model, token, *chosen)
        return True


def _promote(model: "Model", token: str, rung_id: RungId, entry: dict[str, Any]) -> None:
    entry |= {"waiting": False, "promoted_at": model.now}
    trial = model.trials[entry["number"]]
    trial.state, trial.paused_by = State.PENDING, None
    data = {"bracket": rung_id[0], "step": rung_id[1], "score": entry["score"]}
    model._record_event("promoted", "scheduler", number=trial.number, token=token, data=data)


def _next_work(model: "Model", worker: str) -> tuple[Waiting | None, ModelClosing | None]:
    """The trial to promote and the rung to close; at least one of the two is None."""
    judge = model.judge
    waiting = [trial for trial in model.trials if trial.paused_by == "scheduler"]
    paused = {trial.number for trial in model.resources.startable(worker, waiting)}
    if isinstance(judge, ModelSynchronous):
        kept = judge.next_kept(paused)
        return kept, None if kept or can_be_claimed(model) else judge.next_closing(model, paused)
    return _next_candidate(model, judge, paused), None


def _next_candidate(model: "Model", judge: ModelJudge, paused: set[int]) -> Waiting | None:
    if not judge.end_game:
        return judge.promotable(paused)
    best_first = sorted(judge.candidates(paused), key=lambda one: one[1]["score"])
    if spent(model) >= 1 - judge.end_game:
        return next(iter(best_first), None)
    promoted = judge.promotable(paused)
    if promoted is not None or model.is_open:
        return promoted
    return next((one for one in best_first if _is_affordable(model, one[0][1])), None)


def _is_affordable(model: "Model", step: int) -> bool:
    """Whether the end game of a study with `num_trials` may train a trial from `step` to max_t."""
    judge, steps = model.judge, underway(model)
    ends = [*judge.milestones(0), int(judge.max_t)]
    if any(one < ends[0] for one in steps):
        return False
    rungs = [judge.rungs.get((0, end)) for end in ends]
    reached = [len(rung.entries) if rung else 0 for rung in rungs]
    starts = [0, *ends[:-1]]
    spans = [end - start for start, end in zip(starts, ends, strict=True)]
    factor = judge.options["reduction_factor"]
    usual = sum(reached[0] / factor**k * span for k, span in enumerate(spans))
    trained = sum(n * span for n, span in zip(reached, spans, strict=True))
    to_come = sum(judge.max_t - max(end for end in ends if end <= one) for one in steps)
    if reached[-1] + len(steps) == 0:
        return True
    return bool(trained + to_come + judge.max_t - step <= usual / (1 - judge.end_game))
