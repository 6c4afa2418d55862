"""
Any life of a study, on a database and in a model beside it: both say the same after every step.

`STUDYDB_NIGHTLY=1` makes it long: 10,000 steps and more on each database.
"""

import functools
import math
import os
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from arrange import PERSON, Run, SimulatedWorker, new_spec, process, results, token
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from likeness import likeness
from model import Model, ModelAttempt, ModelWorker
from picture import picture
from promises import broken_promises, ended_rows

from studydb.domain.errors import StudydbError
from studydb.domain.records import Batch, Checkpoint, Claim
from studydb.domain.rules import read_rules
from studydb.domain.states import Mode, Reason, Status
from studydb.operations import control
from studydb.operations.create import create
from studydb.operations.finish import finish
from studydb.operations.recover import recover, recover_host
from studydb.operations.register import leave, register
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.operations.save import condemn, forget, save
from studydb.operations.tell import tell
from studydb.schedulers import ASHA, FIFO

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
STEPS = 50
LIVES = 220 if NIGHTLY else 10
LEASES_S = (90.0, 9.0)

SETTINGS = settings(
    max_examples=LIVES,
    stateful_step_count=STEPS,
    derandomize=not NIGHTLY,  # the suite gives the same answer every time, the night finds more
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

studies = st.fixed_dictionaries(
    {
        "num_trials": st.sampled_from([10, 6, 3, 1, None]),
        "max_concurrent": st.sampled_from([None, 3, 2, 1]),
        "max_failures": st.sampled_from([1, 0, -1]),
        "max_losses": st.sampled_from([10, 1, 0]),
        "mode": st.sampled_from(Mode),
        "scheduler": st.sampled_from(
            [
                FIFO(),
                ASHA(max_t=9, reduction_factor=3),
                ASHA(max_t=8, grace_period=2, reduction_factor=2),
            ]
        ),
        "rules": st.sampled_from(
            [(), ("loss<-0.5",), ("training_iteration>=7",), ("loss>=5", "training_iteration>=9")]
        ).map(read_rules),
    }
)
values = st.sampled_from([0.5, 0.1, 0.25, 0.25, 0.75, 0.9, -0.0, math.nan, math.inf, -math.inf])
batches = st.lists(values, max_size=3)
picks = st.integers(0, 11)
places = st.integers(0, 1)
ENDS = (Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.TIMED_OUT, Reason.PREEMPTED)


def often(weight, name, **arguments):
    """A deed by its name, with what it is given; the weights stand in for Hypothesis's own."""
    return [st.tuples(st.just(name), st.fixed_dictionaries(arguments))] * weight


deeds = st.one_of(
    *often(4, "take_a_trial", place=places, values=batches),
    *often(1, "ask", place=places),
    *often(1, "claim", place=places),
    *often(5, "report", pick=picks, values=batches, gap=st.sampled_from([0, 0, 0, 1, 3])),
    *often(1, "report_from_the_first_step", pick=picks, values=batches),
    *often(2, "save", pick=picks, further=st.sampled_from([0, 0, -1, 4])),
    *often(3, "finish", pick=picks, values=batches, outcome=st.sampled_from(ENDS)),
    *often(1, "condemn", pick=picks),
    *often(1, "tell", pick=picks),
    *often(2, "renew", place=places),
    *often(1, "zombie_reports", pick=picks, values=batches),
    *often(1, "zombie_saves", pick=picks),
    *often(1, "zombie_finishes", pick=picks, values=batches, outcome=st.sampled_from(ENDS)),
    *often(3, "send_again", pick=picks),
    *often(1, "crash", place=places),
    *often(1, "leave", place=places),
    *often(3, "wait", seconds=st.sampled_from([1, 0.5, 2, 9, 20, 90, 91, 400])),
    *often(2, "recover"),
    *often(3, "silence", place=places),
    *often(1, "recover_this_host"),
    *often(1, "forget"),
    *often(2, "enqueue", priority=st.sampled_from([0, 0, -1, 1])),
    *often(1, "extend", by=st.integers(1, 3)),
    *often(2, "interfere", how=st.sampled_from(["paused", "resumed", "stopped"]), picks=st.lists(picks, min_size=1, max_size=2)),
    *often(1, "set_status", status=st.sampled_from([Status.RUNNING, *Status][:4])),
)


@dataclass
class Hand:
    """An attempt in a worker's hand and in the model, held or not."""

    run: Run
    attempt: ModelAttempt
    has_flushed: bool = False
    has_saved: bool = False


class StudyMachine(RuleBasedStateMachine):
    """Does each thing to the database and to the model, and compares."""

    steps = 0

    def __init__(self, database, clock):
        super().__init__()
        self.database, self.clock = database, clock
        self.hands: list[Hand] = []
        self.sent: deque[Any] = deque(maxlen=4)
        self.ended: dict[int, Any] = {}
        self.params: dict[int, Any] = {}
        self.pids = iter(range(1, 10_000))

    @initialize(asked=studies)
    def begin(self, asked):
        self.began = self.clock.now
        spec = new_spec(**asked)
        self.study, self.model = create(self.database, spec), Model(spec)
        self.workers = [self._worker(lease_s) for lease_s in LEASES_S]

    def teardown(self):
        self.clock.now = self.began

    # --- workers take trials

    @rule(place=places)
    def ask(self, place):
        self._acquire(place, "ask")

    @rule(place=places)
    def claim(self, place):
        self._acquire(place, "claim")

    @rule(place=places, values=batches)
    def claim_what_waits_or_ask(self, place, values):
        if self._acquire(place, "claim") or self._acquire(place, "ask"):
            self._report(self.hands[-1], values)

    def _acquire(self, place, how):
        (worker, known), once, got = self.workers[place], token(), []

        def act():
            got.append(getattr(worker, how)(once))
            return got[-1] and seen(got[-1].claimed)

        def expect():
            got.append(getattr(self.model, how)(known, token=once))
            return got[-1] and self._awaited(got[-1])

        self._same(act, expect)
        attempt, run = got[:2]
        if run is not None:
            self.hands.append(Hand(run, attempt))
        return run is not None

    def _awaited(self, attempt):
        trial, restored = self.model.trials[attempt.number], attempt.restored
        there = restored if restored in self.model.checkpoints else None
        return SimpleNamespace(
            number=attempt.number,
            attempt=attempt.no,
            token=attempt.token,
            lease_s=attempt.worker.lease_s,
            checkpoint=there and there.uuid,
            next_decision_step=self.model.next_decision(there.step if there else 0),
            time_total_s=trial.time_total_s or 0.0,
        )

    # --- attempts write

    @precondition(lambda self: self.holding)
    @rule(pick=picks, values=batches, gap=st.sampled_from([0, 0, 0, 1, 3]))
    def report(self, pick, values, gap):
        self._report(self._holder(pick), values, gap=gap)

    @precondition(lambda self: self.holding)
    @rule(pick=picks, values=batches)
    def report_from_the_first_step(self, pick, values):
        hand = self._holder(pick)
        self._report(hand, values, first=None if hand.has_flushed else 1)

    @precondition(lambda self: self.holding)
    @rule(pick=picks, further=st.sampled_from([0, 0, -1, 4]))
    def save(self, pick, further):
        self._save(self._holder(pick), further)

    @precondition(lambda self: self.holding)
    @rule(pick=picks, values=batches, outcome=st.sampled_from(Reason).filter(lambda it: it in ENDS))
    def finish(self, pick, values, outcome):
        self._finish(self._holder(pick), values, outcome)

    @precondition(lambda self: self.holding)
    @rule(pick=picks)
    def release(self, pick):
        self._finish(self._holder(pick), [], Reason.PREEMPTED)

    @precondition(lambda self: self.holding)
    @rule(pick=picks)
    def condemn(self, pick):
        hand = self._holder(pick)
        bad, saved = hand.run.claimed.checkpoint, hand.attempt.restored
        if bad is not None and not hand.has_saved:
            self._same(
                lambda: condemn(self.database, lease=hand.run.lease, checkpoint=bad),
                lambda: self.model.condemn(hand.attempt, saved),
            )

    @precondition(lambda self: self.hands)
    @rule(pick=picks)
    def tell(self, pick):
        hand, once = self.hands[-1 - pick % len(self.hands)], token()
        self._same(
            lambda: tell(
                self.database, lease=hand.run.lease, kind="disk full", data={}, token=once
            ),
            lambda: self.model.tell(hand.attempt, "disk full", token=once),
        )

    @rule(place=places)
    def renew(self, place):
        worker, known = self.workers[place]
        held = [hand for hand in self.hands if hand.run.worker is worker][-8:]
        leases = [hand.run.lease for hand in held]
        self._same(
            lambda: renew(self.database, worker_id=worker.id, held=leases).held,
            lambda: self.model.renew(known, [hand.attempt for hand in held]),
        )

    def _report(self, hand, values, *, gap=0, first=None):
        batch = self._batch(hand, values, first or hand.run.after_step + 1 + gap)
        self._same(
            lambda: told(report(self.database, self.study, lease=hand.run.lease, batch=batch)),
            lambda: self.model.report(hand.attempt, **sent(batch)),
        )
        self._advance_hand(hand, batch)

    def _finish(self, hand, values, outcome):
        batch = self._batch(hand, values, hand.run.after_step + 1)
        given = {"lease": hand.run.lease, "outcome": outcome, "batch": batch}
        self._same(
            lambda: finish(self.database, self.study, **given),
            lambda: self.model.finish(hand.attempt, outcome, **sent(batch)),
        )
        self._advance_hand(hand, batch)

    def _save(self, hand, further):
        what = hand.run.checkpoint(step=max(1, hand.run.after_step + further))
        self._same(
            lambda: uuids(save(self.database, lease=hand.run.lease, checkpoint=what, data=b"abc")),
            lambda: self.model.save(hand.attempt, uuid=what.uuid, step=what.step),
        )
        hand.has_saved = True

    @staticmethod
    def _batch(hand, values, first):
        rows = results(*values, first=first)
        return Batch(hand.run.flush_no + 1, rows, hand.run.after_step)

    @staticmethod
    def _advance_hand(hand, batch):
        hand.run.flush_no = batch.flush_no
        if batch.results:
            hand.has_flushed, hand.run.after_step = True, batch.results[-1].step

    # --- zombies write, whose trial is another's, waits, or has ended

    @precondition(lambda self: self.zombies)
    @rule(pick=picks, values=batches)
    def zombie_reports(self, pick, values):
        self._report(self._zombie(pick), values)

    @precondition(lambda self: self.zombies)
    @rule(pick=picks)
    def zombie_saves(self, pick):
        self._save(self._zombie(pick), 5)

    @precondition(lambda self: self.zombies)
    @rule(pick=picks, values=batches, outcome=st.sampled_from([Reason.COMPLETED, Reason.FAILED]))
    def zombie_finishes(self, pick, values, outcome):
        self._finish(self._zombie(pick), values, outcome)

    # --- a reply is lost, and the call sent again

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def send_again(self, pick):
        self.sent[-1 - pick % len(self.sent)]()

    # --- processes die, time passes, somebody comes along

    @rule(place=places)
    def crash(self, place):
        _, known = self.workers[place]
        known.is_alive = False
        self.workers[place] = self._worker(LEASES_S[place])

    @rule(place=places)
    def leave(self, place):
        worker, known = self.workers[place]
        self._same(
            lambda: leave(self.database, worker_id=worker.id), lambda: self.model.leave(known)
        )

    @rule(seconds=st.sampled_from([1, 0.5, 2, 9, 20, 90, 91, 400]))
    def wait(self, seconds):
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule()
    def recover(self):
        self._same(lambda: recover(self.database, self.study), self.model.recover)

    @rule(place=places)
    def silence(self, place):
        for seconds in (LEASES_S[place] + 1, LEASES_S[place] / 4.5, 0):
            self.wait(seconds)
            self.recover()

    @rule()
    def recover_this_host(self):
        alive = {known.pid for known in self.model.workers if known.is_alive}
        self._same(
            lambda: recover_host(
                self.database, self.study, process=process(), is_alive=lambda it: it.pid in alive
            ),
            self.model.recover_host,
        )

    @precondition(lambda self: any(one.removed for one in self.model.checkpoints))
    @rule()
    def forget(self):
        gone = [one.uuid for one in self.model.checkpoints if one.removed and not one.corrupt]
        with self.database.begin(write=False) as txn:
            rows = txn.raw(f"SELECT id, uuid FROM checkpoint WHERE study_id = {self.study.id}")[1]
        removed = [stub(row_id, uuid) for row_id, uuid in rows if uuid in gone]
        forget(self.database, removed=removed)
        self.model.forget(gone)

    # --- people ask

    @rule(priority=st.sampled_from([0, 0, -1, 1]))
    def enqueue(self, priority):
        request = {"token": token(), "actor": PERSON, "priority": priority}
        self._same(
            lambda: control.enqueue(self.database, self.study, {"lr": 0.5}, **request),
            lambda: self.model.enqueue(**request),
        )

    @rule(numbers=some_numbers)
    def pause(self, numbers):
        self._steer(control.pause, "paused", numbers)

    @rule(numbers=some_numbers)
    def resume(self, numbers):
        self._steer(control.resume, "resumed", numbers)

    @rule(number=st.integers(0, 6))
    def stop(self, number):
        self._steer(control.stop, "stopped", [number])

    def _steer(self, ask_for, kind, numbers):
        request = {"token": token(), "actor": PERSON}
        self._same(
            lambda: ask_for(self.database, self.study, numbers, **request),
            lambda: self.model.steer(kind, numbers, **request),
        )

    @rule(status=st.sampled_from([Status.RUNNING, Status.RUNNING, Status.PAUSED, Status.STOPPED]))
    def set_status(self, status):
        request = {"token": token(), "actor": PERSON}
        self._same(
            lambda: control.set_status(self.database, self.study, status, **request),
            lambda: self.model.set_status(status, **request),
        )

    @rule(by=st.integers(1, 3))
    def extend(self, by):
        request = {"by": by, "token": token(), "actor": PERSON}
        self._same(
            lambda: control.extend(self.database, self.study, **request),
            lambda: self.model.extend(**request),
        )

    # --- the comparison

    @invariant()
    def rows_say_what_the_model_says(self):
        type(self).steps += 1
        shown = picture(self.database, self.study)
        for number, trial in shown["trials"].items():
            assert self.params.setdefault(number, trial.pop("params")) == self.params[number]
        assert shown == likeness(self.model)

    @invariant()
    def promises_are_kept(self):
        assert broken_promises(self.database, self.study) == {}

    @invariant()
    def ended_trials_stay_as_they_are(self):
        now = ended_rows(self.database, self.study)
        assert self.ended.items() <= now.items()
        self.ended = now

    def _same(self, act, expect):
        def once():
            awaited = outcome_of(expect)
            assert outcome_of(act) == awaited

        self.sent.append(once)
        once()

    # --- who is there

    def _worker(self, lease_s) -> tuple[SimulatedWorker, ModelWorker]:
        pid = next(self.pids)
        worker = SimulatedWorker(self.database, self.study, lease_s=lease_s, of=process(pid))
        uuid = picture(self.database, self.study)["workers"][-1]["uuid"]
        self._register_again(uuid, pid, lease_s, worker.id)
        return worker, self.model.register(worker.id, uuid=uuid, pid=pid, lease_s=lease_s)

    def _register_again(self, uuid, pid, lease_s, known_id):
        given = {"process": process(pid), "slots": 1, "lease_s": lease_s, "version": "0"}
        assert register(self.database, self.study, uuid=uuid, **given) == known_id

    @property
    def holding(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.attempt.ended_at is None]

    @property
    def zombies(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.attempt.ended_at is not None]

    def _holder(self, pick):
        return self.holding[-1 - pick % len(self.holding)]

    def _zombie(self, pick):
        return self.zombies[-1 - pick % len(self.zombies)]


ENDS = (Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.TIMED_OUT)


def seen(claimed: Claim) -> SimpleNamespace:
    lease, checkpoint = claimed.lease, claimed.checkpoint
    return SimpleNamespace(
        number=lease.number,
        attempt=lease.attempt,
        token=lease.token,
        lease_s=lease.lease_s,
        checkpoint=checkpoint and checkpoint.uuid,
        next_decision_step=claimed.next_decision_step,
        time_total_s=claimed.time_total_s,
    )


def told(answer):
    return answer.verdict, answer.next_decision_step


def sent(batch):
    return {"flush_no": batch.flush_no, "after": batch.after_step, "results": batch.results}


def uuids(checkpoints):
    return [one.uuid for one in checkpoints]


def stub(row_id, uuid):
    return Checkpoint(uuid, 0, 0, 0, "dict", "inline:", "", 0, id=row_id)


def outcome_of(call):
    """What a call answers, or the kind of its refusal."""
    try:
        return call()
    except StudydbError as refusal:
        return type(refusal)


@pytest.mark.timeout(7200 if NIGHTLY else 300)
def test_any_life_of_a_study_is_the_models(database, clock, record_property):
    StudyMachine.steps = 0

    run_state_machine_as_test(
        functools.partial(StudyMachine, database, clock), settings=SETTINGS
    )

    record_property("steps", StudyMachine.steps)
    assert StudyMachine.steps >= LIVES * STEPS * 0.9
