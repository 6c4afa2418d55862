"""Makes the snapshot that a database should have according to a model."""

import math
from dataclasses import asdict
from typing import Any

from harness.model import Model
from harness.model_checkpoints import kept_bytes
from harness.model_judging import ModelRung
from harness.model_rows import ModelAttempt, ModelCheckpoint, ModelTrial
from harness.snapshot import GONE, Snapshot, plain
from studydb.domain.life.decisions import Verdict
from studydb.domain.life.states import State, Status


def expected_rows(model: Model) -> Snapshot:
    """The expected result of `take_snapshot`, except params, which the model does not have."""
    return {
        "study": [_study(model)],
        "trials": {trial.number: _trial(model, trial) for trial in model.trials},
        "attempts": {
            (attempt.number, attempt.no): _attempt(model, attempt)
            for trial in model.trials
            for attempt in trial.attempts
        },
        "results": {
            (attempt.number, attempt.no): _results(trial, attempt)
            for trial in model.trials
            for attempt in trial.attempts
            if attempt.stored
        },
        "checkpoints": [asdict(one) for one in model.checkpoints],
        "uploads": [asdict(one) for one in model.uploads],
        "foreign": [_foreign(one) for one in model.foreign],
        "counts": {state: sum(trial.state is state for trial in model.trials) for state in State},
        "spending": {
            "cost": round(model.spending.cost, 6),
            "steps": model.spending.steps,
            "time_s": round(model.spending.time_s, 6),
        },
        "rungs": {
            rung_id: _rung(model, rung)
            for rung_id, rung in model.judge.rungs.items()
            if rung.entries
        },
        "best": model.best,
        "resources": dict(model.resources.classes),
        "workers": [_worker(worker) for worker in model.workers.values()],
        "events": model.events,
    }


def _study(model: Model) -> dict[str, Any]:
    limited = model.spec.max_concurrent is not None
    return {
        "status": model.status,
        "paused_by": "person" if model.status is Status.PAUSED else model.limit and "limit",
        "pause_reason": model.limit,
        "num_trials": model.num_trials,
        "next_number": len(model.trials),
        "next_draw": model.next_draw,
        "n_counted": model.n_counted,
        "n_running": len(model.running) if limited else 0,
        "checkpoint_bytes": kept_bytes(model),
    }


def _trial(model: Model, trial: ModelTrial) -> dict[str, Any]:
    held = trial.held
    return {
        "state": trial.state,
        "reason": trial.reason,
        "origin": trial.origin,
        "draw": trial.draw,
        "bracket": trial.bracket,
        "priority": trial.priority,
        "ready": trial.ready_at is None if trial.state is State.PENDING else None,
        "ready_at": trial.ready_at,
        "request": trial.request,
        "paused_by": trial.paused_by,
        "attempt": len(trial.attempts),
        "failures": trial.failures,
        "losses": trial.losses,
        "token": held and held.token,
        "worker": held and held.worker.uuid,
        "lease_s": held and trial.lease_s,
        "lease_expires_at": held and trial.expires_at,
        "suspect_at": trial.suspect_at,
        "flush_no": trial.flush_no if held else None,
        "checkpoint": _name(model, trial.checkpoint),
        "checkpoint_step": trial.checkpoint_step,
        "time_total_s": trial.time_total_s,
        "running_s": trial.running_s,
        "running_until": trial.running_until,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "changed": trial.changed,
        "invalidated_at": trial.invalidated_at,
        "parent": trial.parent,
        "resource_class": trial.asks,
        "source": _name(model, trial.source),
        **_verdict(trial.verdict),
        **_summary(model, trial),
    }


def _summary(model: Model, trial: ModelTrial) -> dict[str, Any]:
    steps = sorted(trial.live)
    best_step, best = model.judge.best_of(trial.live)
    has_rank = trial.held is None and trial.invalidated_at is None
    is_ranked = has_rank and best is not None and not math.isnan(best)
    return {
        "n_results": len(steps),
        "last_step": steps[-1] if steps else None,
        "last_value": plain(trial.live[steps[-1]]) if steps else None,
        "best_value": plain(best),
        "best_step": best_step,
        "best_score": None if best is None else model.judge.score(best),
        "rank_score": model.judge.score(best) if is_ranked and best is not None else None,
        "metric_summary": _metrics(model, trial) if trial.ended_at is not None else None,
    }


def _metrics(model: Model, trial: ModelTrial) -> dict[str, Any] | None:
    values = [trial.live[step] for step in sorted(trial.live)]
    if not values:
        return None
    expected = {"last": plain(values[-1])}
    numbers = [value for value in values if not math.isnan(value)]
    if numbers:
        finite = all(math.isfinite(value) for value in numbers)
        average = math.fsum(numbers) / len(numbers) if finite else "NaN"
        expected |= {"min": min(numbers), "max": max(numbers), "avg": average}
    return {model.spec.objective.metric: expected}


def _attempt(model: Model, attempt: ModelAttempt) -> dict[str, Any]:
    return {
        "token": attempt.token,
        "worker": attempt.worker.uuid,
        "start_step": attempt.start_step,
        "flush_no": attempt.flush_no,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "reason": attempt.reason,
        "error_type": attempt.error_type,
        "restored": _name(model, attempt.restored),
        **_verdict(attempt.verdict),
    }


def _results(trial: ModelTrial, attempt: ModelAttempt) -> dict[int, Any]:
    """
    For each step: the value, and whether it is live.

    A value is live if all later attempts that have results began after its step.
    """
    starts = [one.start_step for one in trial.attempts[attempt.no :] if one.stored]
    return {
        step: (plain(value), all(step < start for start in starts))
        for step, value in attempt.stored.items()
    }


def _name(model: Model, checkpoint: ModelCheckpoint | None) -> str | None:
    if checkpoint is None:
        return None
    return checkpoint.uuid if checkpoint in [*model.checkpoints, *model.foreign] else GONE


def _foreign(checkpoint: ModelCheckpoint) -> dict[str, Any]:
    columns = asdict(checkpoint)
    del columns["number"]
    return columns


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return dict.fromkeys(("verdict", "verdict_reason", "verdict_by"))
    return {
        "verdict": verdict.action,
        "verdict_reason": verdict.reason,
        "verdict_by": verdict.by,
    }


def _rung(model: Model, of: ModelRung) -> dict[str, Any]:
    entries = of.entries
    ranked = sorted(
        ((one["score"], one["number"]) for one in entries if one["ranked"]), reverse=True
    )
    rank = model.judge.cut_rank(len(ranked))
    return {
        "n_entries": len(entries),
        "n_ranked": len(ranked),
        "cut_rank": rank,
        "cut": ranked[rank] if ranked else None,
        "last_kept": of.last_kept,
        "is_over": of.is_over,
        "entries": entries,
    }


def _worker(worker: Any) -> dict[str, Any]:
    return asdict(worker)
