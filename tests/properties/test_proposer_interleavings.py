"""
Calls that store points, ask for trials and enqueue trials, interleaved statement by statement.

The points come from a model or are proposed by index. In any schedule there is no deadlock, no
point is proposed twice, the draws of the proposals have no gap, and the proposals stay within the
budget. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import os
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from harness.arrange import SimulatedWorker, enqueued, new_study, rows
from harness.model_searcher import ModelSearch

from studydb.domain.life.states import Origin
from studydb.operations import proposer
from studydb.operations.ask import ask
from studydb.operations.proposer import Point

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 8.0
NUM_TRIALS = 4


def points(*rates):
    return [Point({"lr": rate}, Origin.SEARCHER) for rate in rates]


class Plan:
    """The calls of one schedule. Process "a" was the proposer, but its lease has expired."""

    def __init__(self, database):
        database.clock = lambda: START
        self.study = new_study(database, searcher=ModelSearch(), num_trials=NUM_TRIALS)
        self.worker = SimulatedWorker(database, self.study)
        self._take(database, "a")
        database.clock = self.clock

    def clock(self):
        return START + timedelta(seconds=LEASE_S + 1)

    def _take(self, database, token):
        given = {"token": token, "worker_id": 0, "lease_s": LEASE_S}
        return proposer.take_lease(database, self.study, **given)

    def late(self, database):
        return proposer.store_block(database, self.study, points(0.1, 0.2), token="a")

    def fit(self, database):
        taken = self._take(database, "b")
        return taken and proposer.store_block(database, self.study, points(0.2, 0.3), token="b")

    def by_index(self, database):
        seen = proposer.look(database, self.study, token="c", if_nothing_waits=False)
        if seen is not None and not seen.is_proposed:
            proposer.store_by_index(
                database, self.study, lambda _: points(0.2, 0.4), draw=seen.draw
            )

    def ask(self, database):
        def by_model(_if_nothing_waits):
            seen = proposer.look(database, self.study, token="d", if_nothing_waits=False)
            return seen is not None and seen.is_proposed

        claimed = ask(database, self.study, self.worker.claimant(), by_model=by_model)
        return claimed and claimed.params["lr"]

    def enqueue(self, database):
        return enqueued(database, self.study, lr=0.2)


PLANS = [
    ("late", "fit"),
    ("late", "fit", "ask"),
    ("fit", "by_index"),
    ("fit", "by_index", "ask"),
    ("late", "fit", "by_index", "ask"),
    ("by_index", "by_index", "ask"),
    ("fit", "enqueue", "ask"),
    ("by_index", "enqueue", "ask", "ask"),
]


@pytest.mark.parametrize("names", PLANS, ids=" ".join)
def test_no_point_is_proposed_twice_and_draws_have_no_gap_and_the_budget_is_kept(stage, names):
    database, interleaver = stage
    for seed in range(SCHEDULES):
        plan = Plan(database)

        calls = [getattr(plan, name) for name in names]
        result = interleaver.run(calls, Random(f"{names} {seed}"), clock=plan.clock)

        message = f"seed {seed}: {result}"
        assert result.faults == [], message
        assert broken_promises(database, plan.study) == [], message


def broken_promises(database, study):
    ((next_draw, n_counted),) = rows(
        database, f"SELECT next_draw, n_counted FROM study WHERE id = {study.id}"
    )
    proposed = rows(
        database,
        f"SELECT draw, params_hash FROM proposal WHERE study_id = {study.id} "
        f"AND draw >= {next_draw} ORDER BY draw",
    )
    made = rows(
        database,
        f"SELECT params_hash FROM trial WHERE study_id = {study.id} AND origin <> 'enqueued'",
    )
    hashes = [key for _, key in proposed] + [key for (key,) in made]
    return [
        *(["a point twice"] if len(set(hashes)) < len(hashes) else []),
        *(
            ["a gap"]
            if [draw for draw, _ in proposed] != list(range(next_draw, next_draw + len(proposed)))
            else []
        ),
        *(["over the budget"] if n_counted + len(proposed) > NUM_TRIALS else []),
    ]
