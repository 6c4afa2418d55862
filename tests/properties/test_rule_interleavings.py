"""
A custom stop rule stops a trial, or fails and so pauses its study, while other operations run.

Two calls run at the same time on PostgreSQL, interleaved statement by statement.

In any schedule the rows are those of one of the two orders in which the calls can run one after the
other, and there is no deadlock.
`STUDYDB_SCHEDULES=200` runs more schedules.
"""

import itertools
import os
from datetime import UTC, datetime

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.serial_schedules import expect_serial_outcomes
from msgspec import structs

from studydb.domain.failures import Failure
from studydb.domain.life.custom_rule import CustomRule, RuleDecision, RuleFailure
from studydb.domain.life.states import Reason, Status
from studydb.operations import control
from studydb.operations.ask import ask
from studydb.operations.finish import finish
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.schedulers import ASHA

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "2"))
"""The number of schedules in which each pair of calls runs."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)

FAILS = RuleDecision(failure=RuleFailure(1, "it hangs"))
STOPS = RuleDecision(1, "my_rules:TooSlow()", "too slow")

CALLS = (
    *("a rule fails", "a rule fails at another trial", "a rule fails at the end of a trial"),
    *("a rule stops", "fail", "renew", "ask"),
    *("pause", "resume", "stop", "stop the trial"),
)

STUDIES = {
    "plain": {},
    "with limits": {"max_steps": 2, "trial_time_limit_s": 60.0},
    "with rungs": {"scheduler": ASHA(max_t=9), "max_concurrent": 3, "fail_fast": True},
}

PAIRS = [
    (kind, *pair)
    for kind in STUDIES
    for pair in itertools.combinations_with_replacement(CALLS, 2)
    if pair[0].startswith("a rule") or pair[1].startswith("a rule")
]


class Situation:
    """Three running trials. Some calls carry a rule's decision to stop, or a rule's failure."""

    def __init__(self, database, kind):
        rules = (CustomRule("my_rules:TooSlow"),)
        self.study = new_study(database, rules=rules, **STUDIES[kind])
        self.worker = SimulatedWorker(database, self.study)
        self.runs = [self.worker.take() for _ in range(3)]

    def call(self, name):
        study, request, claimant = self.study, new_request(), self.worker.claimant()
        first, other, third = self.runs

        def reporting(run, ruled):
            batch = structs.replace(run.batch(0.5), ruled=ruled)
            return lambda over: report(over, study, lease=run.lease, batch=batch)

        def ending(run, outcome, batch, failure=None):
            return lambda over: finish(
                over, study, lease=run.lease, outcome=outcome, batch=batch, failure=failure
            )

        statuses = {"pause": Status.PAUSED, "resume": Status.RUNNING, "stop": Status.STOPPED}
        calls = {
            "a rule fails": reporting(first, FAILS),
            "a rule stops": reporting(first, STOPS),
            "a rule fails at another trial": reporting(other, FAILS),
            "a rule fails at the end of a trial": ending(
                third, Reason.COMPLETED, structs.replace(third.batch(0.5), ruled=FAILS)
            ),
            "fail": ending(third, Reason.FAILED, third.batch(), Failure("ValueError", "a typo")),
            "renew": lambda over: renew(
                over, study, worker_id=self.worker.id, held=[run.lease for run in self.runs]
            ),
            "ask": lambda over: ask(over, study, claimant),
            "stop the trial": lambda over: control.stop(over, study, [0], request),
        }
        if name in statuses:
            return lambda over: control.set_status(over, study, statuses[name], request)
        return calls[name]

    def rows(self, database):
        """Renew the leases, which stores requests as verdicts; then read the rows to compare."""
        self.worker.renew(*self.runs)
        of_study = f"study_id = {self.study.id}"
        return (
            rows(
                database,
                "SELECT status, paused_by, pause_reason, n_running FROM study "
                f"WHERE id = {self.study.id}",
            ),
            rows(
                database,
                "SELECT number, state, reason, verdict, verdict_reason, verdict_by, n_results "
                f"FROM trial WHERE {of_study} ORDER BY number",
            ),
            rows(
                database,
                f"SELECT kind, actor, count(*) FROM event WHERE {of_study} "
                "GROUP BY kind, actor ORDER BY kind, actor",
            ),
            rows(database, f"SELECT sum(steps), sum(running) FROM counter WHERE {of_study}"),
        )


@pytest.fixture(scope="module")
def stage(stage):
    database, _ = stage
    database.clock = lambda: NOW
    return stage


@pytest.mark.sampled(8)
@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_calls_while_a_rule_decides_have_the_effect_of_a_serial_order(stage, pair):
    expect_serial_outcomes(stage, Situation, pair, now=NOW, schedules=SCHEDULES)
