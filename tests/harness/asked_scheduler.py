"""Custom schedulers whose code runs in the test's own process, not in a child."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from studydb.domain.custom_scheduler import (
    JUDGE,
    AskScheduler,
    CustomScheduler,
    Question,
    SchedulerPlan,
)
from studydb.domain.life.decisions import Decision
from studydb.domain.records import Batch, Study
from studydb.domain.scheduling import Work
from studydb.lease.scheduler_judge import SchedulerJudge
from studydb.schedulers import UserScheduler
from studydb.trainables.custom_schedulers import (
    JudgeAnswer,
    WorkAnswer,
    ask_judge,
    ask_next_work,
    read_decision,
    read_work,
)

Answered = TypeVar("Answered")


def described(scheduler: CustomScheduler) -> UserScheduler:
    """The scheduler as read from a study's row: it raises DecisionNeeded where user code decides."""
    made = UserScheduler.of(scheduler)
    return replace(made, plan=SchedulerPlan.of(scheduler))


def asked(scheduler: CustomScheduler) -> UserScheduler:
    """Like `described`, but the user's code answers in this process, and gets only plain data."""
    made = described(scheduler)

    def ask(question: Question) -> Decision | Work:
        arguments = json.loads(json.dumps({"text": question.text}))
        if question.method == JUDGE:
            judged = over_the_wire(ask_judge(scheduler, arguments), JudgeAnswer)
            return read_decision(question, judged, made.plan)
        return read_work(question, over_the_wire(ask_next_work(scheduler, arguments), WorkAnswer))

    return made.asked_by(ask)


def failing(study: Study, error: Exception) -> Study:
    """The study with a scheduler that raises this error whenever it is asked."""

    def ask(_question: Question) -> Decision | Work:
        raise error

    scheduler: Any = study.scheduler
    return replace(study, scheduler=scheduler.asked_by(ask))


class Meanwhile:
    """
    Asks the user's code, and lets something else happen before the answer is used.

    Attributes:
        act: Called once, after the code has answered; `act` may make calls that ask the code, too.
        fail: Raised once instead of an answer, after `act`.
        n_asked: How often the code was asked.
    """

    def __init__(self, inner: AskScheduler) -> None:
        self.inner, self.n_asked = inner, 0
        self.act: Callable[[], None] | None = None
        self.fail: Exception | None = None

    def __call__(self, question: Question) -> Decision | Work:
        self.n_asked += 1
        answer = self.inner(question)
        act, fail, self.act, self.fail = self.act, self.fail, None, None
        if act is not None:
            act()
        if fail is not None:
            raise fail
        return answer


def over_the_wire(answer: dict[str, Any], kind: type[Any]) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=kind)


def sent(study: Study, call: Callable[[Batch], Answered], batch: Batch) -> Answered:
    """Send a batch as a worker does: ask the scheduler for the decisions that the batch needs."""
    judge = SchedulerJudge.of(study)
    return call(batch) if judge is None else judge.send(call, batch)
