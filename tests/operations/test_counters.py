"""
After random operations, the counter of each state equals the number of trials in that state.

The study's `n_running` equals the number of RUNNING trials.
"""

import random
from contextlib import suppress

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    retry_while_busy,
    rows,
    run_together,
)

from studydb.db import connect
from studydb.domain.errors import BudgetSpent, LeaseLost, NotAllowed, UnknownTrial
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.operations import control
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress

REFUSALS = (BudgetSpent, LeaseLost, NotAllowed, UnknownTrial)

OUTCOMES = (Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.PREEMPTED)


def rows_by_state(database):
    found = dict(rows(database, "SELECT state, count(*) FROM trial GROUP BY state"))
    return {state.lower(): found.get(state, 0) for state in State}


def counters_by_state(database, study):
    found = read_progress(database, study).counts
    return {state.lower(): getattr(found, state.lower()) for state in State}


def check_counters(database, study):
    expected = rows_by_state(database)
    assert counters_by_state(database, study) == expected
    assert rows(database, "SELECT n_running FROM study") == [(expected["running"],)]


class RandomCaller:
    def __init__(self, database, study, seed, *, advance):
        self.database, self.study, self.rng = database, study, random.Random(seed)
        self.worker, self.advance = SimulatedWorker(database, study), advance
        self.runs = []

    def call(self, steps):
        actions = [self.acquire, self.acquire, self.report, self.end, self.end, self.enqueue]
        actions += [self.request, self.request, self.set_status, self.sweep]
        for _ in range(steps):
            with suppress(*REFUSALS):
                retry_while_busy(self.rng.choice(actions))

    def acquire(self):
        run = self.worker.acquire()
        if run is not None:
            self.runs.append(run)

    def report(self):
        if self.runs:
            self.rng.choice(self.runs).report(self.rng.random())

    def end(self):
        if self.runs:
            run = self.runs.pop(self.rng.randrange(len(self.runs)))
            run.finish(self.rng.random(), outcome=self.rng.choice(OUTCOMES))

    def enqueue(self):
        enqueued(self.database, self.study)

    def request(self):
        asked = self.rng.choice([control.pause, control.resume, control.stop])
        numbers = [self.rng.randrange(12) for _ in range(self.rng.randint(1, 2))]
        asked(self.database, self.study, numbers, new_request())

    def set_status(self):
        status = self.rng.choice([Status.PAUSED, Status.RUNNING, Status.RUNNING])
        control.set_status(self.database, self.study, status, new_request())

    def sweep(self):
        self.advance(self.rng.choice([0.0, 30.0, 100.0]))
        recover(self.database, self.study)


def busy_study(database):
    return new_study(
        database,
        num_trials=40,
        max_concurrent=4,
        max_failures=1,
        max_losses=1,
        rules=read_rules(["loss<0.1"]),
    )


@pytest.mark.parametrize("seed", range(3))
def test_counters_equal_the_number_of_rows_after_every_operation(database, clock, seed):
    study = busy_study(database)
    caller = RandomCaller(database, study, seed, advance=clock.advance)

    for _ in range(60):
        caller.call(1)

        check_counters(database, study)


def test_counters_equal_the_number_of_rows_after_concurrent_random_operations(storage_url):
    database = connect(storage_url, connections=5)
    study = busy_study(database)
    callers = [RandomCaller(database, study, seed, advance=lambda _: None) for seed in range(4)]

    run_together([lambda caller=caller: caller.call(40) for caller in callers])

    check_counters(database, study)
    database.close()
