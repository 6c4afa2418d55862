"""
Make the object of a custom scheduler from its code, in a child, and ask the object.

The process that asks the child checks the answers by `read_decision` and `read_work`.
"""

import json
import math
from collections.abc import Mapping
from operator import index
from typing import Any

from msgspec import Struct

from studydb.domain.custom_scheduler import (
    JUDGE,
    NEXT_WORK,
    JudgeView,
    Question,
    SchedulerPlan,
    WorkView,
)
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import InvalidSpec, TrainableError
from studydb.domain.failures import bounded
from studydb.domain.life.custom_rule import LONGEST_WHY
from studydb.domain.life.decisions import Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.resources import read_resources_or_none
from studydb.domain.scheduling import Close, Idle, WaitingTrial, Work
from studydb.domain.trainable import Trainable
from studydb.trainables.custom_rules import options_of

DECLARED = "declared plan"
"""The name of the question that asks a scheduler for its plan; see `declared_plan`."""

_REASONS = {
    Action.CONTINUE: (None,),
    Action.STOP: (Reason.EARLY_STOPPED, Reason.COMPLETED),
    Action.PAUSE: (Reason.PAUSED,),
}
"""The reasons that fit an action; the first reason is taken if the user's code gives none."""


def make_scheduler(code: Trainable, loaded: Any) -> Any:
    """
    Make the object of a scheduler from its class; the class may raise anything.

    Raises:
        TrainableError: What was loaded is no class with `judge`; or the scheduler's plan is not
            valid; or the class sets `resumes` and has no `next_work`.
    """
    if not isinstance(loaded, type) or not callable(getattr(loaded, JUDGE, None)):
        raise TrainableError(
            f"{code.name} is not a class with a method {JUDGE}(report, view). Derive it from "
            "studydb.CustomScheduler."
        )
    scheduler = loaded(**(options_of(code) or {}))
    try:
        plan = SchedulerPlan.of(scheduler)
    except InvalidSpec as error:
        raise TrainableError(f"{code.name} declares a plan that is not valid. {error}") from None
    if plan.resumes and not callable(getattr(loaded, NEXT_WORK, None)):
        raise TrainableError(
            f"{code.name} sets resumes = True, but has no method {NEXT_WORK}(view); write it."
        )
    return scheduler


def declared_plan(scheduler: Any, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan that a scheduler declares; `make_scheduler` has checked the plan."""
    return SchedulerPlan.of(scheduler).to_json()


def ask_judge(scheduler: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Call `judge` with the view that the text of a `Question` holds; `judge` may raise anything.

    Raises:
        TrainableError: The answer is no `Decision`.
        InvalidSpec: The decision's `resources` are not amounts of resources.
    """
    view = JudgeView(json.loads(arguments["text"]))
    decision = scheduler.judge(view.report, view)
    if not isinstance(decision, Decision):
        raise TrainableError(
            f"{JUDGE} returned {_described(decision)}; return a studydb.Decision: Decision() to go "
            "on, Decision(Action.STOP, …) or Decision(Action.PAUSE, …)."
        )
    entry = decision.entry
    return {
        "action": str(decision.action),
        "reason": None if decision.reason is None else str(decision.reason),
        "entry": entry
        and {
            "rung": tuple(map(_in_64_bits, entry.rung)),
            "score": float(entry.score),
            "waits": bool(entry.waits),
        },
        "cutoff": None if decision.cutoff is None else float(decision.cutoff),
        "exploits": decision.exploit is not None,
        "why": None if decision.why is None else bounded(str(decision.why), LONGEST_WHY),
        "resources": _amounts(decision.resources),
    }


def _amounts(given: Any) -> dict[str, float] | None:
    asked = read_resources_or_none("resources of a decision", given)
    return None if asked is None else dict(asked.amounts)


def ask_next_work(scheduler: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Call `next_work` with the view from the text of a `Question`; `next_work` may raise anything.

    Raises:
        TrainableError: The answer is neither a waiting trial, nor a `Close`, nor an `Idle`.
    """
    work = scheduler.next_work(WorkView(json.loads(arguments["text"])))
    match work:
        case WaitingTrial():
            return {
                "rung": tuple(map(_in_64_bits, work.rung)),
                "trial_id": _in_64_bits(work.trial_id),
            }
        case Close():
            return {"rung": tuple(map(_in_64_bits, work.rung)), "keep": _in_64_bits(work.keep)}
        case Idle():
            return {"idle": str(work)}
    raise TrainableError(
        f"{NEXT_WORK} returned {_described(work)}; return a trial of view.best_waiting(rung), "
        "studydb.Close(rung, keep), studydb.Idle.START_NEW or studydb.Idle.WAIT."
    )


def _in_64_bits(number: Any) -> int:
    """Bound an integer, because a message holds 64 bits; no rung or trial has such a number."""
    return max(-(2**63), min(index(number), 2**63 - 1))


def _described(answer: Any) -> str:
    return "None" if answer is None else type(answer).__name__


class _EntryAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    rung: tuple[int, int]
    score: float
    waits: bool


class JudgeAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of `ask_judge`, which the asking process decodes and does not trust."""

    action: Action
    reason: Reason | None
    entry: _EntryAnswer | None
    cutoff: float | None
    exploits: bool
    why: str | None = None
    resources: dict[str, float] | None = None


class WorkAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of `ask_next_work`, which the asking process decodes and does not trust."""

    rung: tuple[int, int] | None = None
    trial_id: int | None = None
    keep: int | None = None
    idle: Idle | None = None


def read_decision(question: Question, answer: JudgeAnswer, plan: SchedulerPlan) -> Decision:
    """
    Turn an answer into a decision that can be carried out.

    Raises:
        DecisionFailed: studydb cannot carry out this decision; the message says why.
    """
    reasons = _REASONS.get(answer.action)
    if reasons is None or answer.exploits:
        raise DecisionFailed(
            f"{JUDGE} asked for an exploit (action {answer.action}), which studydb cannot do."
        )
    if answer.reason not in (None, *reasons):
        raise DecisionFailed(
            f"{JUDGE} answered {answer.action} with the reason {answer.reason}, which does not fit "
            "this action."
        )
    key = JudgeView(json.loads(question.text)).key
    entry = None if answer.entry is None else _read_entry(key, answer.entry)
    waits = entry is not None and entry.waits
    if (answer.action is Action.PAUSE) != waits:
        raise DecisionFailed(
            f"{JUDGE} answered {answer.action} with waits={waits}; a trial that pauses has an "
            "entry with waits=True, and no other trial has one."
        )
    if waits and not plan.resumes:
        raise DecisionFailed(f"{JUDGE} answered PAUSE; set resumes = True in the class.")
    cutoff = answer.cutoff  # a rung whose scores are infinite has the cutoff NaN
    if cutoff is not None and math.isnan(cutoff):
        cutoff = None
    if answer.resources is not None and not waits:
        raise DecisionFailed(
            f"{JUDGE} answered {answer.action} with resources; only a trial that pauses can be "
            "given other resources, by Decision(Action.PAUSE, …, resources=…)."
        )
    try:
        asked = _amounts(answer.resources)
    except InvalidSpec as error:
        raise DecisionFailed(f"{JUDGE} changed the resources of a trial. {error}") from None
    return Decision(
        answer.action,
        answer.reason or reasons[0],
        entry,
        cutoff,
        why=bounded(answer.why, LONGEST_WHY) if answer.why else None,
        resources=asked,
    )


def _read_entry(key: RungKey, entry: _EntryAnswer) -> Entry:
    if entry.rung != key:
        raise DecisionFailed(
            f"{JUDGE} records the report in the rung {entry.rung}, but it is at {tuple(key)}."
        )
    if math.isnan(entry.score):
        raise DecisionFailed(f"{JUDGE} records the score NaN; give math.inf for the worst.")
    return Entry(key, entry.score, entry.waits)


def read_work(question: Question, answer: WorkAnswer) -> Work:
    """
    Turn an answer into work that can be done.

    Returns:
        The work; `Idle.WAIT` instead of closing a rung that is already closed or has no entries.

    Raises:
        DecisionFailed: The answer is neither a trial, nor a rung to close, nor an `Idle`; it keeps
            fewer than 0 trials; it closes a rung that the study does not have; or it resumes
            another trial than the best of those that wait at the rung.
    """
    view = WorkView(json.loads(question.text))
    match answer:
        case WorkAnswer(rung=None, trial_id=None, keep=None, idle=Idle() as idle):
            return idle
        case WorkAnswer(rung=(bracket, step), trial_id=int(), keep=None, idle=None):
            waiting = view.best_waiting(RungKey(bracket, step))
            if waiting is None or waiting.trial_id != answer.trial_id:
                raise DecisionFailed(
                    f"{NEXT_WORK} resumes a trial that is not the best of those that wait at the "
                    f"rung {(bracket, step)}; return what view.best_waiting(rung) has returned."
                )
            return waiting
        case WorkAnswer(rung=(bracket, step), trial_id=None, keep=int() as keep, idle=None):
            return _read_close(view, Close(RungKey(bracket, step), keep))
    raise DecisionFailed(
        f"{NEXT_WORK} gave an answer that is neither a trial, nor a rung to close, nor an Idle."
    )


def _read_close(view: WorkView, closing: Close) -> Close | Idle:
    if closing.keep < 0:
        raise DecisionFailed(f"{NEXT_WORK} keeps {closing.keep} trials; give 0 or more.")
    known = view.find(closing.rung)
    if known is None:
        raise DecisionFailed(
            f"{NEXT_WORK} closes the rung {tuple(closing.rung)}, which does not exist: no trial "
            "has reached it, and it is at no milestone; close a rung of view.rungs()."
        )
    return Idle.WAIT if known.is_closed or known.n_entries == 0 else closing
