"""
A study's life at random: things happen to a database and to a model beside it, which must agree.

What happens is drawn from generators that the caller gives, so a life can be lived again.
"""

import functools
import math
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from harness.actions import Company, Deed, Hand, Staff, outcome_of
from harness.arrange import new_spec
from harness.model import Model
from harness.snapshot import BEGINNING
from studydb.db import Database
from studydb.domain.life.decisions import Verdict
from studydb.domain.life.ending import Ending
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import FINAL, Mode, Reason, Status
from studydb.operations.create import create
from studydb.schedulers import ASHA, FIFO

LEASES_S = (90.0, 9.0)
"""Of the two workers that a life has at any time."""

ASHAS = [
    ASHA(max_t=9, reduction_factor=3),
    ASHA(max_t=8, grace_period=2, reduction_factor=2),
]

STUDIES: dict[str, list[Any]] = {
    "num_trials": [10, 6, 3, None],
    "max_concurrent": [None, 3, 2, 1],
    "max_failures": [1, 0, -1],
    "max_losses": [10, 10, 1, 0],
    "mode": list(Mode),
    "scheduler": [FIFO(), *ASHAS],
    "rules": [
        *[()] * 4,
        read_rules(["loss<-0.5"]),
        read_rules(["training_iteration>=7"]),
        read_rules(["loss>=5", "training_iteration>=9"]),
    ],
}
VALUES = [0.5, 0.1, 0.25, 0.25, 0.75, 0.9, 0.3, 0.4, -0.0, math.nan, math.inf, -math.inf]
ENDS = [Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.TIMED_OUT, Reason.PREEMPTED]

WEIGHTS = {
    "take_a_trial": 6,
    "claim": 2,
    "ask": 1,
    "report": 10,
    "report_from_the_first_step": 1,
    "report_nothing": 1,
    "save": 3,
    "finish": 2,
    "obey": 2,
    "condemn": 1,
    "tell": 1,
    "renew": 2,
    "zombie_report": 1,
    "zombie_save": 1,
    "zombie_finish": 1,
    "crash": 1,
    "leave": 0.5,
    "wait": 2,
    "turn_back": 0.5,
    "recover": 2,
    "be_silent": 3,
    "recover_host": 1,
    "forget": 1,
    "enqueue": 2,
    "extend": 1,
    "pause": 0.8,
    "stop": 0.8,
    "resume": 1,
    "halt_the_study": 0.7,
    "resume_the_study": 1,
    "send_again": 4,
}
"""How often each thing happens; `deed` makes those that are one call, the others are several."""


class Life:
    """A study in a database, its model, and those who work on it."""

    def __init__(self, database: Database, rng: Random, **overrides: Any) -> None:
        self.database = database
        drawn = {name: rng.choice(choices) for name, choices in STUDIES.items()}
        spec = new_spec(**(drawn | overrides))
        self.model = Model(spec)
        database.clock = self.clock
        self.study = create(database, spec)
        self.company = Company(self.study)
        self.sent: deque[Deed] = deque(maxlen=8)
        self.happened: Counter[str] = Counter()
        self.dead: frozenset[int] = frozenset()
        self.busy: list[Hand] = []
        self._pids = iter(range(1, 10_000))
        self.staff: list[Staff] = []
        for lease_s in LEASES_S:
            self.do(self.company.register(next(self._pids), lease_s, self.staff.append))

    def step(self, rng: Random) -> None:
        """Let something happen."""
        (name,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        self.happened[name] += 1
        several: Callable[[Random], None] | None = getattr(self, name, None)
        if several is not None:
            several(rng)
        elif deed := self.deed(name, rng):
            self.do(deed)

    def do(self, deed: Deed) -> None:
        """Do one thing to both, and compare the answers."""
        self.busy.clear()
        self.sent.append(deed)
        awaited = outcome_of(lambda: deed.expect(self.model))
        assert outcome_of(lambda: deed.act(self.database)) == awaited, deed.name
        self.happened[f"{deed.name.split()[0]}: {_kind(awaited)}"] += 1

    def deed(self, name: str, rng: Random) -> Deed | None:
        """One call of the kind that a name says; None if nobody can make it now."""
        made: Deed | None = getattr(self, f"_{name}")(rng)
        return made

    # --- several calls, or none

    def take_a_trial(self, rng: Random) -> None:
        """Insist: resume the study, or extend it, if that is what it takes."""
        if self.model.status is not Status.RUNNING:
            self.do(self._resume_the_study(rng))
        if not self.model.is_open and not self.model.runnable:
            self.do(self._extend(rng))
        held = len(self.company.hands)
        self.do(self._claim(rng))
        if len(self.company.hands) == held:
            self.do(self._ask(rng))
        if len(self.company.hands) > held:
            self.do(self.company.report(self.company.hands[-1], some_values(rng)))

    def obey(self, _: Random) -> None:
        """Every worker that stands under a verdict ends its attempt."""
        for hand in self.hands(held=True):
            if self.model.trials[hand.lease.number].verdict is not None:
                self.do(self.company.finish(hand, [], Reason.COMPLETED))

    def wait(self, rng: Random) -> None:
        self.let_pass(rng.choice([0.5, 1, 2, 9, 20, 90, 91, 400]))

    def turn_back(self, rng: Random) -> None:
        """The clock is set, or another server with a slower one takes over."""
        self.let_pass(-rng.choice([1, 20, 200]))

    def be_silent(self, rng: Random) -> None:
        """All holders of one lease or both, until their trials are taken."""
        self.raise_doubts(rng.choice(LEASES_S))
        self.do(self._recover(rng))

    def raise_doubts(self, lease_s: float) -> None:
        """Until the next sweep will take the trials."""
        self.let_pass(lease_s + 1)
        self.do(self.company.recover())
        self.let_pass(lease_s / 4.5)

    def crash(self, rng: Random) -> None:
        """A process is gone, its leases are not; another starts."""
        place = rng.randrange(len(LEASES_S))
        self.dead |= {self.staff[place].pid}
        successor = functools.partial(self.staff.__setitem__, place)
        self.do(self.company.register(next(self._pids), LEASES_S[place], successor))

    def send_again(self, rng: Random) -> None:
        """The reply was lost, so it seemed."""
        self.do(rng.choice(self.sent))

    def let_pass(self, seconds: float) -> None:
        self.model.now += seconds

    def clock(self) -> datetime:
        """What the database goes by."""
        return BEGINNING + timedelta(seconds=self.model.now)

    # --- attempts

    def _ask(self, rng: Random) -> Deed:
        return self.company.ask(rng.choice(self.staff))

    def _claim(self, rng: Random) -> Deed:
        return self.company.claim(rng.choice(self.staff))

    def _report(self, rng: Random) -> Deed | None:
        if hand := self._writer(rng):
            first = hand.after_step + 1 + rng.choice([0, 0, 0, 1, 3])
            return self.company.report(hand, some_values(rng), first=first)
        return None

    def _report_from_the_first_step(self, rng: Random) -> Deed | None:
        if hand := self._writer(rng):
            first = None if hand.has_flushed else 1
            return self.company.report(hand, some_values(rng), first=first)
        return None

    def _report_nothing(self, rng: Random) -> Deed | None:
        hand = self._writer(rng)
        return self.company.report(hand, []) if hand else None

    def _save(self, rng: Random) -> Deed | None:
        hand = self._hand(rng)
        return self.company.save(hand, further=rng.choice([0, 0, -1, 4])) if hand else None

    def _finish(self, rng: Random) -> Deed | None:
        hand, values = self._writer(rng), rng.choice([[], some_values(rng)])
        return self.company.finish(hand, values, rng.choice(ENDS)) if hand else None

    def _condemn(self, rng: Random) -> Deed | None:
        hand = self._hand(rng)
        if hand is None or hand.restored is None or hand.has_flushed or hand.has_saved:
            return None
        return self.company.condemn(hand, hand.restored)

    def _tell(self, rng: Random) -> Deed | None:
        hand = self._hand(rng, held=rng.random() < 0.5)
        return self.company.tell(hand) if hand else None

    def _renew(self, rng: Random) -> Deed:
        return self.company.renew(rng.choice(self.staff))

    # --- zombies, whose trial is another's, waits, or has ended

    def _zombie_report(self, rng: Random) -> Deed | None:
        hand = self._writer(rng, held=False)
        return self.company.report(hand, some_values(rng)) if hand else None

    def _zombie_save(self, rng: Random) -> Deed | None:
        hand = self._hand(rng, held=False)
        return self.company.save(hand, further=5) if hand else None

    def _zombie_finish(self, rng: Random) -> Deed | None:
        hand = self._writer(rng, held=False)
        return self.company.finish(hand, some_values(rng), rng.choice(ENDS)) if hand else None

    # --- whoever comes along

    def _leave(self, rng: Random) -> Deed:
        return self.company.leave(rng.choice(self.staff))

    def _recover(self, _: Random) -> Deed:
        return self.company.recover()

    def _recover_host(self, _: Random) -> Deed:
        return self.company.recover_host(self.dead)

    def _forget(self, _: Random) -> Deed:
        return self.company.forget()

    # --- people

    def _enqueue(self, rng: Random) -> Deed:
        return self.company.enqueue(priority=rng.choice([0, 0, -1, 1]))

    def _extend(self, rng: Random) -> Deed:
        return self.company.extend(by=rng.randint(1, 3))

    def _pause(self, rng: Random) -> Deed:
        return self.company.steer("paused", self._some_numbers(rng))

    def _stop(self, rng: Random) -> Deed:
        return self.company.steer("stopped", self._some_numbers(rng))

    def _resume(self, rng: Random) -> Deed:
        return self.company.steer("resumed", self._some_numbers(rng))

    def _halt_the_study(self, rng: Random) -> Deed:
        return self.company.set_status(rng.choice([Status.PAUSED, Status.STOPPED]))

    def _resume_the_study(self, _: Random) -> Deed:
        return self.company.set_status(Status.RUNNING)

    def _some_numbers(self, rng: Random) -> list[int]:
        """Mostly of trials that have not ended; now and then of any, or of none there is."""
        alive = [trial.number for trial in self.model.trials if trial.state not in FINAL]
        choices = alive if alive and rng.random() < 0.8 else range(len(self.model.trials) + 1)
        return [rng.choice(choices) for _ in range(rng.randint(1, 2))]

    # --- hands

    def hands(self, *, held: bool) -> list[Hand]:
        """Those whose attempt still holds its trial, or those whose doesn't."""
        return [
            hand
            for hand in self.company.hands
            if (attempt := self.model.attempt_of(hand.lease.token))
            and (attempt.ended_at is None) is held
        ]

    def _writer(self, rng: Random, *, held: bool = True) -> Hand | None:
        """Whoever flushes: one batch of an attempt is answered before the next one is sent."""
        hands = [hand for hand in self.hands(held=held) if hand not in self.busy]
        if not hands:
            return None
        self.busy.append(rng.choice(hands[-6:]))
        return self.busy[-1]

    def _hand(self, rng: Random, *, held: bool = True) -> Hand | None:
        hands = self.hands(held=held)
        return rng.choice(hands[-6:]) if hands else None


def _kind(answer: Any) -> str:
    """What is told apart of answers: refusals, None, verdicts, ends."""
    if isinstance(answer, type):
        return answer.__name__
    if isinstance(answer, Ending):
        return str(answer.state)
    if isinstance(answer, tuple) and isinstance(answer[0], Verdict):
        return f"{answer[0].action} by {answer[0].by}"
    return "nothing" if answer is None or answer == 0 else "something"


def some_values(rng: Random) -> list[float]:
    """One to three, such as a metric may have."""
    return rng.choices(VALUES, k=rng.randint(1, 3))
