"""
Two calls, interleaved statement by statement on PostgreSQL, at a rung that may close or has closed.

In any schedule (order of statements) there is no deadlock, and the rows are as if one call had run
after the other. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import itertools
import os
from datetime import UTC, datetime

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.serial_schedules import expect_serial_outcomes

from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Close
from studydb.operations import control
from studydb.operations.close_rung import close_rung
from studydb.operations.finish import finish
from studydb.operations.give_up import give_up
from studydb.operations.promote import promote
from studydb.operations.report import report
from studydb.schedulers import HyperBand

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "2"))
"""The number of schedules in which each pair of calls runs."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SITUATIONS = {
    "a trial of the bracket runs": (
        *("promote", "report", "fail", "resume the worst", "stop the best", "pause the best"),
    ),
    "all trials wait": (
        *("promote", "promote", "close", "resume the worst", "stop the best", "pause the best"),
    ),
    "the rung has closed, and a late trial runs": (
        *("give up", "give up", "promote", "report", "resume the worst", "stop the worst"),
        *("pause the worst", "stop the best"),
    ),
}
"""The calls of each situation. A test runs two calls of one situation at the same time."""

PAIRS = [
    (situation, *pair)
    for situation, calls in SITUATIONS.items()
    for pair in dict.fromkeys(itertools.combinations(calls, 2))
]


class Situation:
    """
    A bracket of HyperBand: trials 0 and 1 have reported 0.5 and 0.1, and wait at the rung.

    If `name` is "all trials wait", trial 2 has reported 0.3 and waits, too; otherwise trial 2 runs.
    If `name` begins with "the rung", the rung has closed and kept trial 1.
    """

    def __init__(self, database, name):
        self.study = new_study(database, scheduler=HyperBand(max_t=3), num_trials=3)
        self.worker = SimulatedWorker(database, self.study)
        for value in (0.5, 0.1):
            self._wait(self.worker.take(), value)
        self.run = self.worker.take()
        if name.startswith("all"):
            self._wait(self.run, 0.3)
        if name.startswith("the rung"):
            close_rung(database, self.study, Close(RungKey(0, 1), keep=1))

    def _wait(self, run, value):
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)

    def call(self, name):
        study, claimant, request = self.study, self.worker.claimant(), new_request()
        number = 1 if name.endswith("best") else 0
        batch = self.run.batch(0.3)
        ending = {"lease": self.run.lease, "outcome": Reason.FAILED, "batch": self.run.batch()}
        steering = {"resume": control.resume, "stop": control.stop, "pause": control.pause}
        calls = {
            "promote": lambda over: promote(over, study, claimant),
            "close": lambda over: close_rung(over, study, Close(RungKey(0, 1), keep=1)),
            "give up": lambda over: give_up(over, study),
            "report": lambda over: report(over, study, lease=self.run.lease, batch=batch),
            "fail": lambda over: finish(over, study, **ending),
        }
        steer = steering.get(name.split()[0])
        return calls.get(name) or (lambda over: steer(over, study, [number], request))

    def rows(self, database):
        """
        Let a free worker act three times; then read the trials and the entries of the rung.

        Each time, the worker gives up trials, does what the scheduler wants, and claims a trial.
        """
        for _ in range(3):
            give_up(database, self.study)
            promote(database, self.study, self.worker.claimant())
            self.worker.claim()  # while a trial is PENDING, no trial is promoted
        trial = "number, state, reason, paused_by, verdict"
        entry = "t.number, e.score, e.waiting, g.closed_ordinal"
        of_study = f"study_id = {self.study.id}"
        return (
            rows(database, f"SELECT {trial} FROM trial WHERE {of_study} ORDER BY number"),
            rows(
                database,
                f"SELECT {entry}, g.is_over FROM rung g JOIN rung_entry e ON e.rung_id = g.id "
                f"JOIN trial t ON t.id = e.trial_id WHERE g.{of_study} ORDER BY t.number",
            ),
        )


@pytest.fixture(scope="module")
def stage(stage):
    database, _ = stage
    database.clock = lambda: NOW
    return stage


@pytest.mark.sampled(8)
@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_calls_during_the_closing_of_a_rung_have_the_effect_of_a_serial_order(stage, pair):
    expect_serial_outcomes(stage, Situation, pair, now=NOW, schedules=SCHEDULES)
