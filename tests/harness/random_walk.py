"""
Random actions on a study: each runs on a database and on a model, and the two must agree.

The caller gives the random generator, so a walk can be repeated.
"""

import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from fleet.trainables.scheduling import Growing, Halving

from harness.actions import ActionFactory, ClaimedAttempt, RegisteredWorker, outcome_of
from harness.arrange import can_ask, created, new_spec
from harness.asked_scheduler import Meanwhile, asked
from harness.checkpoint_steps import KEEPS, WITH_KEEP, CheckpointSteps
from harness.model import Model
from harness.model_resources import REQUESTS
from harness.snapshot import BEGINNING
from harness.study_action import StudyAction
from studydb.db import Database
from studydb.domain.life.decisions import Action, Verdict
from studydb.domain.life.ending import FREE_EXITS, Ending
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import FINAL, Mode, Reason, State, Status
from studydb.domain.limits import CostLimit
from studydb.schedulers import ASHA, FIFO, HyperBand, MedianStopping, OneEpoch

LEASES_S = (90.0, 9.0)
"""How long the leases of a walk's two workers last."""

OFFERS: tuple[Mapping[str, float], ...] = (
    {"cpus": 3, "gpus": 2, "licence": 1},
    {"cpus": 1, "gpus": 1},
)
"""What the two workers offer, if trials ask for resources."""

ASHAS = [ASHA(max_t=9, reduction_factor=3), ASHA(max_t=8, grace_period=2, reduction_factor=2)]
PROMOTIONS = [
    ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0),
    ASHA(max_t=8, grace_period=2, reduction_factor=2, type="promotion", end_game=0),
]

CUSTOM = [
    asked(Halving(max_t=9, reduction_factor=3)),
    asked(Halving(max_t=8, grace_period=2, reduction_factor=2)),
]
CUSTOM_PROMOTIONS = [
    asked(Halving(max_t=9, reduction_factor=3, type="promotion")),
    asked(Halving(max_t=8, grace_period=2, reduction_factor=2, type="promotion")),
]
GROWING = [
    asked(Growing(max_t=9, reduction_factor=3, type="promotion")),
    asked(Growing(max_t=8, grace_period=2, reduction_factor=2, type="promotion")),
]
"""Schedulers that change a trial's request for resources when they pause the trial."""

SYNE_TUNE = ASHA(max_t=9, reduction_factor=2, rule="syne_tune")
MEDIANS = [
    MedianStopping(min_samples=2),
    MedianStopping(grace_period=2, min_samples=1, interval=2, hard_stop=False),
]
END_GAME = ASHA(max_t=8, grace_period=2, reduction_factor=2, type="promotion", end_game=0.5)
ONE_EPOCH = OneEpoch(i=2, top_k=2, max_t=6)
HYPERBANDS = [HyperBand(max_t=4, reduction_factor=2), HyperBand(max_t=9)]
"""A band of the first HyperBand has three brackets, of 4, 3 and 3 trials; the third has no rung."""

STUDIES: dict[str, list[Any]] = {
    "num_trials": [10, 6, 3, None],
    "max_concurrent": [None, 3, 2, 1],
    "max_failures": [1, 0, -1],
    "max_losses": [10, 10, 1, 0],
    "mode": list(Mode),
    "scheduler": [
        *(FIFO(), *ASHAS, *PROMOTIONS, *CUSTOM, *CUSTOM_PROMOTIONS),
        *(SYNE_TUNE, *MEDIANS, END_GAME, *HYPERBANDS),
    ],
    "rules": [
        *[()] * 4,
        read_rules(["loss<-0.5"]),
        read_rules(["training_iteration>=7"]),
        read_rules(["loss>=5", "training_iteration>=9"]),
    ],
}
LIMITS: list[dict[str, Any]] = [
    {"cost_limit": CostLimit("loss", 3.03)},
    {"max_steps": 15},
    {"total_time_limit_s": 300.3, "trial_time_limit_s": 250.3},
    {"trial_time_limit_s": 100.3},
    {"max_steps": 40, "total_time_limit_s": 500.3},
]
VALUES = [0.5, 0.1, 0.25, 0.25, 0.75, 0.9, 0.3, 0.4, -0.0, math.nan, math.inf, -math.inf]
ENDS = [Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.PREEMPTED]

WEIGHTS = {
    "take_a_trial": 6,
    "claim": 2,
    "ask": 1,
    "promote": 2,
    "report": 10,
    "report_done": 1,
    "report_from_the_first_step": 1,
    "report_nothing": 1,
    "save": 3,
    "finish": 2,
    "give_back": 3,
    "give_back_in_a_row": 1,
    "carry_out_verdicts": 2,
    "mark_corrupt": 1,
    "record_event": 1,
    "renew": 2,
    "zombie_report": 1,
    "zombie_save": 1,
    "zombie_finish": 1,
    "crash": 1,
    "leave": 0.5,
    "wait": 2,
    "turn_clock_back": 0.5,
    "recover": 2,
    "expire_leases": 3,
    "recover_host": 1,
    "delete_removed": 1,
    "enqueue": 2,
    "extend": 1,
    "pause": 1,
    "stop": 0.8,
    "resume": 1,
    "resume_changed": 1.5,
    "retry": 1.5,
    "invalidate": 0.7,
    "reinstate": 0.7,
    "pause_or_stop_the_study": 0.7,
    "resume_the_study": 1,
    "drain": 0.5,
    "send_again": 4,
    "begin_upload": 1,
    "save_upload": 1,
    "collect": 0.5,
    "collect_25_hours_later": 0.1,
    "remove_unkept": 0.7,
    "enqueue_from_a_trial": 1.5,
    "enqueue_from_another_study": 0.7,
    "change_the_other_study": 1,
    "enqueue_an_upload": 0.7,
    "enqueue_a_dict": 0.5,
}
"""The weights of a walk's steps. A step "x" is the method `x`, or the action that `_x` returns."""

SIZED_WEIGHTS = {"crowd": 6, "set_resources": 1, "set_resources_of_the_study": 0.5}
"""The weights of the additional steps if trials ask for resources."""

MEANWHILE = (
    *("report", "report", "finish", "give_back", "save", "claim", "ask", "promote", "renew"),
    *("pause", "stop", "resume", "invalidate", "reinstate", "retry", "extend", "recover"),
    *("pause_or_stop_the_study", "resume_the_study"),
)
"""The actions that may run while a custom scheduler decides."""


class RandomWalk(CheckpointSteps):
    """A study in a database, its model, and its workers."""

    def __init__(
        self, database: Database, rng: Random, *, is_sized: bool = False, **overrides: Any
    ) -> None:
        """
        Create a study and two workers.

        Args:
            is_sized: Whether trials ask for resources, and the workers offer unequal amounts.
        """
        self.database, self.is_sized = database, is_sized
        drawn = {name: rng.choice(choices) for name, choices in STUDIES.items()}
        spec = new_spec(**(drawn | overrides))
        self.model = Model(spec)
        database.clock = self.clock
        self.study = created(database, spec)
        self.meanwhile: Meanwhile | None = None
        if can_ask(spec):
            scheduler: Any = spec.scheduler
            self.meanwhile = Meanwhile(scheduler.ask)
            self.study = replace(self.study, scheduler=scheduler.asked_by(self.meanwhile))
        self.factory = ActionFactory(self.study)
        self.factory.uptime_s = lambda: self.model.resources.uptime_s
        self.sent: deque[StudyAction] = deque(maxlen=8)
        self.happened: Counter[str] = Counter()
        self.dead: frozenset[int] = frozenset()
        self.busy: list[ClaimedAttempt] = []
        self._pids = iter(range(1, 10_000))
        self.workers: list[RegisteredWorker] = []
        for lease_s in LEASES_S:
            place = len(self.workers)
            self.do(self._register(place, lease_s, self.workers.append))

    def _register(
        self, place: int, lease_s: float, into: Callable[[RegisteredWorker], None]
    ) -> StudyAction:
        offers = OFFERS[place] if self.is_sized else None
        return self.factory.register(next(self._pids), lease_s, into, offers)

    def step(self, rng: Random) -> None:
        weights = WEIGHTS | ({"raise_the_limits": 1} if self.model.spending.limits else {})
        weights |= {"report_meanwhile": 4} if self.meanwhile else {}
        weights |= SIZED_WEIGHTS if self.is_sized else {}
        weights |= WITH_KEEP if self.model.spec.keep in KEEPS else {}
        weights |= {"come_to_a_choice": 1} if self.model.judge.promotes else {}
        (name,) = rng.choices(list(weights), list(weights.values()))
        self.happened[name] += 1
        method: Callable[[Random], None] | None = getattr(self, name, None)
        if method is not None:
            method(rng)
        elif action := self.action(name, rng):
            self.do(action)

    def do(self, action: StudyAction) -> None:
        """Run one action on the database and on the model, and compare the answers."""
        self.busy.clear()
        self.sent.append(action)
        expected = outcome_of(lambda: action.expect(self.model))
        assert outcome_of(lambda: action.act(self.database)) == expected, action.name
        self.happened[f"{action.name.split()[0]}: {_kind(expected)}"] += 1

    def action(self, name: str, rng: Random) -> StudyAction | None:
        """A random action of this name; None if none is possible now."""
        made: StudyAction | None = getattr(self, f"_{name}")(rng)
        return made

    # --- steps that run several actions, or none

    def take_a_trial(self, rng: Random) -> None:
        """Claim or ask for a trial, and report; if necessary, resume or extend the study first."""
        if self.model.status is not Status.RUNNING:
            self.do(self._resume_the_study(rng))
        if not self.model.is_open and not self.model.runnable:
            self.do(self._extend(rng))
        held = len(self.factory.attempts)
        self.do(self._claim(rng))
        if len(self.factory.attempts) == held:
            self.do(self._ask(rng))
        if len(self.factory.attempts) > held:
            self.do(self.factory.report(self.factory.attempts[-1], some_values(rng)))

    def crowd(self, rng: Random) -> None:
        """Enqueue three trials; let workers claim trials that fit while larger trials wait."""
        for _ in range(3):
            self.do(self._enqueue(rng))
        for _ in range(rng.randint(3, 8)):
            self.do(self._claim(rng))
            name = rng.choice(("wait", "end", "change", "renew"))
            if name == "wait":
                self.advance(4)
            elif name == "renew":
                self.do(self._renew(rng))
            elif name == "change" and rng.random() < 0.4:
                self.do(self._set_resources(rng))
            elif name == "end" and (held := self.attempts(held=True)):
                self.do(self.factory.finish(rng.choice(held), [], Reason.COMPLETED))

    def come_to_a_choice(self, rng: Random) -> None:
        """Bring trials to rungs, end those that still run, and let free workers ask for work."""
        for _ in range(2 * len(self.model.trials) + 4):
            if self.model.runnable or self.model.is_open:
                self.take_a_trial(rng)
            self.carry_out_verdicts(rng)
        for attempt in self.attempts(held=True):
            self.do(self.factory.finish(attempt, [], Reason.COMPLETED))
        for _ in range(3):
            self.do(self._promote(rng))

    def report_meanwhile(self, rng: Random) -> None:
        """Let another operation run while the custom scheduler decides about a report."""
        if self.model.status is Status.RUNNING and self.model.is_open:
            self.do(self._ask(rng))
        newest = self._writer(rng, among=self.attempts(held=True)[-1:])
        asks, other = self.meanwhile, self.action(rng.choice(MEANWHILE), rng)
        if asks is None or newest is None or other is None:
            return
        reports = self.factory.report(newest, some_values(rng))
        answers: dict[str, Any] = {}

        def act() -> None:
            answers[other.name] = outcome_of(lambda: other.act(self.database))

        asks.act = act
        answers["reports"] = outcome_of(lambda: reports.act(self.database))
        was_asked, asks.act = asks.act is None, None
        expected: dict[str, Any] = {}
        if not was_asked:
            act()
            expected["reports"] = outcome_of(lambda: reports.expect(self.model))
        expected[other.name] = outcome_of(lambda: other.expect(self.model))
        if was_asked:  # the scheduler judges the report by the rows that `other` has changed
            expected["reports"] = outcome_of(lambda: reports.expect(self.model))
            self.happened["meanwhile"] += 1
        assert answers == expected
        self.sent += [reports, other]
        self.busy.clear()

    def reinstate(self, rng: Random) -> None:
        """Undo an invalidation; if no trial is invalid, invalidate one first."""
        if all(trial.invalidated_at is None for trial in self.model.trials):
            self.do(self._invalidate(rng))
        self.do(self._reinstate(rng))

    def carry_out_verdicts(self, _: Random) -> None:
        for attempt in self.attempts(held=True):
            if self.model.trials[attempt.lease.number].verdict is not None:
                pauses = self.model.trials[attempt.lease.number].verdict.action is Action.PAUSE
                outcome = Reason.PREEMPTED if pauses else Reason.COMPLETED
                self.do(self.factory.finish(attempt, [], outcome))

    def give_back_in_a_row(self, rng: Random) -> None:
        """
        Give a trial back and claim one, FREE_EXITS + 1 times.

        If each claim takes the same trial and no attempt saves a checkpoint, the trial is lost when
        it is given back for the last time.
        """
        for _ in range(FREE_EXITS + 1):
            action = self._give_back(rng, self.attempts(held=True)[:1])
            if action is None:
                return
            self.do(action)
            self.advance(300)
            self.do(self.factory.recover())
            self.do(self._claim(rng))

    def wait(self, rng: Random) -> None:
        self.advance(rng.choice([0.5, 1, 2, 9, 20, 90, 91, 400]))

    def turn_clock_back(self, rng: Random) -> None:
        """Set the clock back, which happens when a server with a slower clock takes over."""
        self.advance(-rng.choice([1, 20, 200]))

    def expire_leases(self, rng: Random) -> None:
        self.make_suspect(rng.choice(LEASES_S))
        self.do(self._recover(rng))

    def make_suspect(self, lease_s: float) -> None:
        """Let leases of `lease_s` expire, so that the next sweep recovers their trials."""
        self.advance(lease_s + 1)
        self.do(self.factory.recover())
        self.advance(lease_s / 4.5)

    def crash(self, rng: Random) -> None:
        """Let a worker die before its leases expire, and register another worker."""
        place = rng.randrange(len(LEASES_S))
        self.dead |= {self.workers[place].pid}
        successor = functools.partial(self.workers.__setitem__, place)
        self.do(self._register(place, LEASES_S[place], successor))

    def send_again(self, rng: Random) -> None:
        """Send one of the last actions again, as if its reply was lost."""
        self.do(rng.choice(self.sent))

    def advance(self, seconds: float) -> None:
        self.model.now += seconds
        self.model.resources.uptime_s += max(0.0, seconds)

    def clock(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.model.now)

    # --- attempts

    def _ask(self, rng: Random) -> StudyAction:
        return self.factory.ask(rng.choice(self.workers))

    def _promote(self, rng: Random) -> StudyAction:
        return self.factory.promote(rng.choice(self.workers))

    def _claim(self, rng: Random) -> StudyAction:
        return self.factory.claim(rng.choice(self.workers))

    def _report(self, rng: Random) -> StudyAction | None:
        if attempt := self._writer(rng):
            first = attempt.after_step + 1 + rng.choice([0, 0, 0, 1, 3])
            return self.factory.report(attempt, some_values(rng), first=first)
        return None

    def _report_done(self, rng: Random) -> StudyAction | None:
        attempt = self._writer(rng)
        return self.factory.report(attempt, some_values(rng), done=True) if attempt else None

    def _report_from_the_first_step(self, rng: Random) -> StudyAction | None:
        if attempt := self._writer(rng):
            first = None if attempt.has_flushed else 1
            return self.factory.report(attempt, some_values(rng), first=first)
        return None

    def _report_nothing(self, rng: Random) -> StudyAction | None:
        attempt = self._writer(rng)
        return self.factory.report(attempt, []) if attempt else None

    def _finish(self, rng: Random) -> StudyAction | None:
        attempt, values = self._writer(rng), rng.choice([[], some_values(rng)])
        if attempt is None:
            return None
        return self.factory.finish(attempt, values, rng.choice(ENDS), done=rng.random() < 0.2)

    def _give_back(
        self, rng: Random, among: list[ClaimedAttempt] | None = None
    ) -> StudyAction | None:
        attempt = self._writer(rng, among=among)
        values: list[float] = rng.choice([[], some_values(rng)])
        later = rng.random() < 0.5
        return self.factory.give_back(attempt, values, later=later) if attempt else None

    def _record_event(self, rng: Random) -> StudyAction | None:
        attempt = self._attempt(rng, held=rng.random() < 0.5)
        return self.factory.record_event(attempt) if attempt else None

    def _renew(self, rng: Random) -> StudyAction:
        return self.factory.renew(rng.choice(self.workers))

    # --- zombies: here, attempts that write after they have ended

    def _zombie_report(self, rng: Random) -> StudyAction | None:
        attempt = self._writer(rng, held=False)
        return self.factory.report(attempt, some_values(rng)) if attempt else None

    def _zombie_save(self, rng: Random) -> StudyAction | None:
        attempt = self._attempt(rng, held=False)
        return self.factory.save(attempt, step_offset=5) if attempt else None

    def _zombie_finish(self, rng: Random) -> StudyAction | None:
        attempt = self._writer(rng, held=False)
        return self.factory.finish(attempt, some_values(rng), rng.choice(ENDS)) if attempt else None

    # --- sweeps

    def _leave(self, rng: Random) -> StudyAction:
        return self.factory.leave(rng.choice(self.workers))

    def _recover(self, _: Random) -> StudyAction:
        return self.factory.recover()

    def _recover_host(self, _: Random) -> StudyAction:
        return self.factory.recover_host(self.dead)

    # --- people

    def _enqueue(self, rng: Random) -> StudyAction:
        asks = rng.choice([None, *REQUESTS]) if self.is_sized else None
        return self.factory.enqueue(priority=rng.choice([0, 0, -1, 1]), asks=asks)

    def _set_resources(self, rng: Random) -> StudyAction:
        """Change what some trials ask for; mostly these trials are PENDING or PAUSED."""
        still = (State.PENDING, State.PAUSED)
        waiting = [trial.number for trial in self.model.trials if trial.state in still]
        numbers = rng.choices(waiting, k=2) if waiting and rng.random() < 0.7 else []
        if not numbers or rng.random() < 0.1:
            numbers = self._some_numbers(rng)
        if self.model.runnable and rng.random() < 0.3:
            numbers = [self.model.runnable[0].number]
        return self.factory.set_resources(rng.choice(list(REQUESTS)), numbers)

    def _set_resources_of_the_study(self, rng: Random) -> StudyAction:
        return self.factory.set_resources(rng.choice(list(REQUESTS)), [])

    def _extend(self, rng: Random) -> StudyAction:
        return self.factory.extend(by=rng.randint(1, 3))

    def _pause(self, rng: Random) -> StudyAction:
        return self.factory.steer("paused", self._some_numbers(rng))

    def _stop(self, rng: Random) -> StudyAction:
        return self.factory.steer("stopped", self._some_numbers(rng))

    def _resume(self, rng: Random) -> StudyAction:
        return self.factory.steer("resumed", self._some_numbers(rng))

    def _resume_changed(self, rng: Random) -> StudyAction:
        waiting = [
            trial.number
            for trial in self.model.trials
            if trial.state in (State.PENDING, State.PAUSED)
        ]
        numbers = rng.choices(waiting, k=2) if waiting else self._some_numbers(rng)
        return self.factory.resume_changed(numbers, lr=rng.choice([0.25, 0.125]))

    def _retry(self, rng: Random) -> StudyAction:
        ended = [trial.number for trial in self.model.trials if trial.state in FINAL]
        numbers = rng.choices(ended, k=2) if ended and rng.random() < 0.9 else [0]
        return self.factory.retry(numbers, from_scratch=rng.random() < 0.3)

    def _invalidate(self, rng: Random) -> StudyAction:
        numbers = [rng.randrange(len(self.model.trials) + 1)]
        return self.factory.invalidate(numbers, undo=False)

    def _reinstate(self, rng: Random) -> StudyAction:
        invalid = [one.number for one in self.model.trials if one.invalidated_at is not None]
        return self.factory.invalidate(rng.choices(invalid or [0], k=2), undo=True)

    def _pause_or_stop_the_study(self, rng: Random) -> StudyAction:
        return self.factory.set_status(rng.choice([Status.PAUSED, Status.STOPPED]))

    def _resume_the_study(self, _: Random) -> StudyAction:
        return self.factory.set_status(Status.RUNNING)

    def _drain(self, rng: Random) -> StudyAction:
        return self.factory.drain(rng.choice(self.workers))

    def _raise_the_limits(self, rng: Random) -> StudyAction | None:
        """Double one limit of the study; a cost limit is a pair, whose amount is doubled."""
        limits = self.model.spending.limits
        if not limits:
            return None
        name = rng.choice(sorted(limits))
        old = limits[name]
        more = old._replace(most=2 * old.most) if isinstance(old, CostLimit) else 2 * old
        return self.factory.set_limits({name: more})

    def _some_numbers(self, rng: Random) -> list[int]:
        """Mostly numbers of trials that have not ended, sometimes of ended or unknown trials."""
        alive = [trial.number for trial in self.model.trials if trial.state not in FINAL]
        choices = alive if alive and rng.random() < 0.8 else range(len(self.model.trials) + 1)
        return [rng.choice(choices) for _ in range(rng.randint(1, 2))]

    # --- choices of attempts

    def attempts(self, *, held: bool) -> list[ClaimedAttempt]:
        """The attempts that hold their trials; if not `held`, the attempts that have ended."""
        return [
            attempt
            for attempt in self.factory.attempts
            if (known := self.model.attempt_of(attempt.lease.token))
            and (known.ended_at is None) is held
        ]

    def _writer(
        self, rng: Random, *, held: bool = True, among: list[ClaimedAttempt] | None = None
    ) -> ClaimedAttempt | None:
        """An attempt without an unanswered batch, since an attempt sends one batch at a time."""
        known = self.attempts(held=held) if among is None else among
        attempts = [attempt for attempt in known if attempt not in self.busy]
        if not attempts:
            return None
        self.busy.append(rng.choice(attempts[-6:]))
        return self.busy[-1]

    def _attempt(self, rng: Random, *, held: bool = True) -> ClaimedAttempt | None:
        attempts = self.attempts(held=held)
        return rng.choice(attempts[-6:]) if attempts else None


def _kind(answer: Any) -> str:
    """The name of an answer's kind; a walk counts the answers of each kind."""
    if isinstance(answer, type):
        return answer.__name__
    if isinstance(answer, Ending):
        return str(answer.state)
    if isinstance(answer, tuple) and isinstance(answer[0], Verdict):
        return f"{answer[0].action} by {answer[0].by}"
    return "nothing" if answer is None or answer == 0 else "something"


def some_values(rng: Random) -> list[float]:
    return rng.choices(VALUES, k=rng.randint(1, 3))
