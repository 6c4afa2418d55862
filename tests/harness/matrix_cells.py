"""
The cells of the matrix of requests.

A cell is a state of a trial, a person's request, and an operation of a worker. `prepared` makes the
trial; REQUESTS and ACTORS make the actions.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from harness.actions import ClaimedAttempt
from harness.random_walk import ASHAS, PROMOTIONS, RandomWalk
from harness.study_action import StudyAction
from studydb.db import Database
from studydb.domain.life.states import Reason, Status
from studydb.domain.resources import read_resources
from studydb.schedulers import FIFO


class Subject(NamedTuple):
    """The trial of a cell. `attempt`, its newest attempt before the actions, may have ended."""

    walk: RandomWalk
    attempt: ClaimedAttempt

    @property
    def number(self) -> int:
        return self.attempt.lease.number

    @property
    def factory(self) -> Any:
        return self.walk.factory

    def do(self, action: StudyAction) -> None:
        self.walk.do(action)

    def end(self, outcome: Reason) -> None:
        self.do(self.factory.finish(self.attempt, [], outcome))

    def is_asked_to(self, kind: str) -> None:
        self.do(self.factory.steer(kind, [self.number]))

    def renews(self) -> None:
        self.do(self.factory.renew(self.attempt.worker))


State = Callable[[Subject], None]

Make = Callable[[Subject], StudyAction]


def running(subject: Subject) -> None:
    pass


def pending(subject: Subject) -> None:
    subject.end(Reason.PREEMPTED)


def told_to_stop(subject: Subject) -> None:
    subject.is_asked_to("stopped")
    subject.renews()


def told_to_pause(subject: Subject) -> None:
    subject.is_asked_to("paused")
    subject.renews()


def asked_to_stop(subject: Subject) -> None:
    subject.is_asked_to("stopped")


def lost(subject: Subject) -> None:
    subject.walk.make_suspect(subject.attempt.worker.lease_s)


def paused(subject: Subject) -> None:
    subject.is_asked_to("paused")
    subject.end(Reason.PREEMPTED)


def paused_with_its_study(subject: Subject) -> None:
    subject.do(subject.factory.set_status(Status.PAUSED))
    subject.end(Reason.PREEMPTED)


def stopped_by_the_scheduler(subject: Subject) -> None:
    subject.do(subject.factory.report(subject.attempt, [0.5] * 9))


def waiting_at_a_rung(subject: Subject) -> None:
    subject.end(Reason.PREEMPTED)


def completed(subject: Subject) -> None:
    subject.end(Reason.COMPLETED)


def failed(subject: Subject) -> None:
    subject.end(Reason.FAILED)


def invalidated(subject: Subject) -> None:
    subject.end(Reason.COMPLETED)
    subject.do(subject.factory.invalidate([subject.number], undo=False))


STATES: list[State] = [
    *(running, pending, told_to_stop, told_to_pause, asked_to_stop, lost, paused),
    *(paused_with_its_study, stopped_by_the_scheduler, waiting_at_a_rung, completed, failed),
    invalidated,
]
SCHEDULERS: dict[State, Any] = {
    stopped_by_the_scheduler: ASHAS[0],
    waiting_at_a_rung: PROMOTIONS[0],
}

REQUESTS: dict[str, Make] = {
    "pause": lambda one: one.factory.steer("paused", [one.number]),
    "resume": lambda one: one.factory.steer("resumed", [one.number]),
    "resume changed": lambda one: one.factory.resume_changed([one.number], lr=0.3),
    "stop": lambda one: one.factory.steer("stopped", [one.number]),
    "retry": lambda one: one.factory.retry([one.number], from_scratch=False),
    "invalidate": lambda one: one.factory.invalidate([one.number], undo=False),
    "undo": lambda one: one.factory.invalidate([one.number], undo=True),
    "discard": lambda one: one.factory.discard(one.number),
    "pin": lambda one: one.factory.pin(one.number),
    "unpin": lambda one: one.factory.pin(one.number, remove=True),
    "enqueue": lambda one: one.factory.enqueue(),
    "begin from it": lambda one: one.factory.enqueue_from(one.number),
    "begin from a dict": lambda one: one.factory.enqueue_dict(step=3),
    "remove unkept": lambda one: one.factory.remove_unkept(one.number),
    "extend": lambda one: one.factory.extend(by=1),
    "set limits": lambda one: one.factory.set_limits({"max_steps": 1_000_001}),
    "set resources": lambda one: one.factory.set_resources("gpus=1", [one.number]),
    "set resources beyond all": lambda one: one.factory.set_resources("gpus=3", [one.number]),
    "set resources of the study": lambda one: one.factory.set_resources("gpus=2", []),
    "enqueue with resources": lambda one: one.factory.enqueue(asks="gpus=0.5", priority=-1),
    "pause the study": lambda one: one.factory.set_status(Status.PAUSED),
    "stop the study": lambda one: one.factory.set_status(Status.STOPPED),
    "resume the study": lambda one: one.factory.set_status(Status.RUNNING),
    "drain": lambda one: one.factory.drain(one.attempt.worker),
}

ACTORS: dict[str, Make] = {
    "claim": lambda one: one.factory.claim(one.walk.workers[0]),
    "ask": lambda one: one.factory.ask(one.walk.workers[0]),
    "promote": lambda one: one.factory.promote(one.walk.workers[0]),
    "report": lambda one: one.factory.report(one.attempt, [0.4]),
    "save": lambda one: one.factory.save(one.attempt),
    "complete": lambda one: one.factory.finish(one.attempt, [0.4], Reason.COMPLETED),
    "fail": lambda one: one.factory.finish(one.attempt, [], Reason.FAILED),
    "release": lambda one: one.factory.finish(one.attempt, [], Reason.PREEMPTED),
    "give back": lambda one: one.factory.give_back(one.attempt, [], later=True),
    "renew": lambda one: one.factory.renew(one.attempt.worker),
    "recover": lambda one: one.factory.recover(),
    "leave": lambda one: one.factory.leave(one.attempt.worker),
}


def prepared(database: Database, rng: Random, request: str, state: State) -> Subject:
    """
    A study with a trial in the state, and in most cases another trial.

    If the request is about resources, trials ask for resources, and workers offer unequal amounts.
    In this case, the other trial is missing if the workers that are drawn to start it have no room.
    """
    limits: dict[str, Any] = {"max_steps": 1_000_000} if request == "set limits" else {}
    if "resources" in request:
        limits = {"is_sized": True, "resources": read_resources("resources", "cpus=1")}
    walk = RandomWalk(
        database,
        rng,
        scheduler=SCHEDULERS.get(state, FIFO()),
        rules=(),
        num_trials=6,
        max_concurrent=rng.choice([None, 3]),
        max_failures=0,
        max_losses=10,
        **limits,
    )
    for _ in range(2):
        walk.take_a_trial(rng)
    subject = Subject(walk, walk.factory.attempts[-1])
    state(subject)
    return subject
