"""
Concurrent operations, interleaved statement by statement on two or three PostgreSQL connections.

In any schedule the answers and the rows are those of some serial order, there is no deadlock, and
the promises of `harness.row_invariants` are kept. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from random import Random

import pytest
import sqlalchemy as sa
from harness.checkpoint_steps import DAY_AND_HOUR_S
from harness.interleaver import Interleaver, step_by_step
from harness.random_walk import (
    CUSTOM_PROMOTIONS,
    END_GAME,
    LEASES_S,
    LIMITS,
    PROMOTIONS,
    RandomWalk,
)
from harness.row_invariants import broken_promises, ended_rows
from harness.serial_orders import explaining_order
from harness.snapshot import take_snapshot

from studydb.db import Database, Prepared
from studydb.db.schema import study
from studydb.domain.life.states import Reason, Status
from studydb.schedulers import FIFO

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))
"""The number of schedules (orders of statements) in which each plan runs."""

LOCKS = Prepared(
    sa.text("""
        SELECT count(*) AS n FROM pg_locks WHERE relation = 'study'::regclass
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid()
    """).columns(sa.column("n", sa.Integer))
)

AGAIN = "again"
"""In a plan: the action before this word is sent a second time, in a concurrent call."""

PLANS = [
    ("claim", "claim"),
    ("claim", "claim", "claim"),
    ("claim", AGAIN),
    ("claim", AGAIN, "claim"),
    ("ask", "ask"),
    ("ask", "ask", "ask"),
    ("ask", AGAIN, "ask"),
    ("ask", "claim"),
    ("ask", "enqueue"),
    ("enqueue", "claim"),
    ("enqueue", AGAIN, "ask"),
    ("extend", AGAIN, "ask"),
    ("enqueue_from_a_trial", AGAIN),
    ("enqueue_from_a_trial", "save", "save"),
    ("enqueue_from_a_trial", "finish", "retry"),
    ("enqueue_from_a_trial", "remove_unkept", "save"),
    ("enqueue_from_a_trial", "mark_corrupt"),
    ("enqueue_from_a_trial", "delete_removed", "claim"),
    ("enqueue_from_another_study", AGAIN),
    ("enqueue_from_another_study", "change_the_other_study"),
    ("enqueue_from_another_study", "change_the_other_study", "claim"),
    ("enqueue_an_upload", AGAIN, "ask"),
    ("enqueue_an_upload", "collect"),
    ("enqueue_a_dict", AGAIN),
    ("report", "report"),
    ("report", "report", "report"),
    ("report", AGAIN),
    ("report", "stop"),
    ("report", "pause", "claim"),
    ("report", "recover"),
    ("report", "pause_or_stop_the_study"),
    ("finish", AGAIN),
    ("finish", "stop"),
    ("finish", "recover"),
    ("finish", "claim"),
    ("finish", "report", "report"),
    ("give_back", AGAIN),
    ("give_back", "recover"),
    ("give_back", "save", "claim"),
    ("give_back", "stop"),
    ("give_back", "pause_or_stop_the_study", "resume_the_study"),
    ("save", AGAIN),
    ("save", "recover"),
    ("save", "finish", "recover"),
    ("begin_upload", AGAIN),
    ("begin_upload", "finish", "collect"),
    ("begin_upload", "recover", "collect"),
    ("save_upload", AGAIN),
    ("save_upload", "finish", "collect"),
    ("save_upload", "recover", "collect"),
    ("save_upload", AGAIN, "collect"),
    ("save_upload", "begin_upload", "save"),
    ("collect", AGAIN),
    ("mark_corrupt", "recover"),
    ("renew", "renew"),
    ("renew", "stop"),
    ("renew", "recover"),
    ("renew", "recover_host"),
    ("record_event", "recover"),
    ("pause", "claim"),
    ("pause", "stop"),
    ("stop", "stop"),
    ("stop", AGAIN, "claim"),
    ("resume", "claim", "pause"),
    ("resume_changed", "claim", "pause"),
    ("resume_changed", AGAIN, "resume_changed"),
    ("resume", "recover"),
    ("resume", "renew"),
    ("resume", "finish"),
    ("pause", "resume", "finish"),
    ("stop", "resume", "report"),
    ("pause_or_stop_the_study", "finish"),
    ("pause_or_stop_the_study", "resume_the_study", "finish"),
    ("resume_the_study", "finish"),
    ("resume_the_study", "claim"),
    ("retry", AGAIN),
    ("retry", "retry"),
    ("retry", "retry", "finish"),
    ("retry", "report", "report"),
    ("retry", "claim", "ask"),
    ("retry", "enqueue"),
    ("retry", "finish"),
    ("retry", "recover"),
    ("invalidate", AGAIN),
    ("invalidate", "invalidate"),
    ("invalidate", "report", "report"),
    ("invalidate", "finish"),
    ("invalidate", "reinstate"),
    ("invalidate", "claim", "ask"),
    ("invalidate", "recover"),
    ("invalidate", "retry"),
    ("reinstate", "report"),
    ("invalidate", "resume", "renew"),
    ("recover", "recover"),
    ("recover", "recover_host"),
    ("recover", "claim"),
    ("recover", "claim", "stop"),
    ("pause_or_stop_the_study", "claim", "ask"),
    ("resume_the_study", "recover"),
    ("zombie_report", "claim", "recover"),
    ("zombie_finish", "recover"),
    ("promote", "promote"),
    ("promote", AGAIN),
    ("promote", AGAIN, "promote"),
    ("promote", "claim"),
    ("promote", "report"),
    ("promote", "finish"),
    ("promote", "stop"),
    ("promote", "pause", "resume"),
    ("promote", "recover"),
    ("promote", "pause_or_stop_the_study"),
]

PLANS_WITH_LIMITS = [
    ("report", "report", "report"),
    ("report", AGAIN, "renew"),
    ("report", "finish"),
    ("report", "recover"),
    ("renew", "renew"),
    ("renew", "finish"),
    ("report", "pause_or_stop_the_study"),
    ("report", "resume_the_study"),
    ("report", "raise_the_limits", AGAIN),
    ("report", "claim", "ask"),
]


@dataclass
class Stage:
    """A database in which every schedule has its own study, and the interleaver of the calls."""

    database: Database
    interleaver: Interleaver


@pytest.fixture(scope="module")
def stage(stage):
    return Stage(*stage)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("plan", PLANS, ids=" ".join)
def test_concurrent_operations_have_the_effect_of_a_serial_order(stage, plan):
    for seed in range(SCHEDULES):
        run_concurrently(stage, plan, seed)


@pytest.mark.parametrize("plan", PLANS_WITH_LIMITS, ids=" ".join)
def test_concurrent_operations_in_a_study_with_limits_have_the_effect_of_a_serial_order(
    stage, plan
):
    for seed in range(SCHEDULES):
        run_concurrently(
            stage, plan, seed, scheduler=FIFO(), rules=(), **LIMITS[seed % len(LIMITS)]
        )


@pytest.mark.parametrize("plan", [("report", "stop"), ("ask", "claim"), ("recover", "renew")])
@pytest.mark.parametrize("seed", range(3))
def test_schedule_is_the_same_for_the_same_seed(stage, plan, seed):
    assert (
        run_concurrently(stage, plan, seed).schedule == run_concurrently(stage, plan, seed).schedule
    )


@pytest.mark.slow
def test_some_schedules_alternate_between_calls_and_they_differ_by_seed(stage):
    result = [run_concurrently(stage, ("report", "report"), seed).schedule for seed in range(8)]

    turn_orders = {tuple(turn[0] for turn in schedule) for schedule in result}
    # With only two groups of consecutive turns, one call has run after the other.
    n_alternating = sum(len(list(groupby(order))) > 2 for order in turn_orders)
    assert n_alternating > 2


def test_server_has_executed_each_statement_before_the_next_turn(stage):
    def write(database):
        with database.begin() as txn:
            txn.run(sa.update(study).values(status=study.c.status))
            txn.run(sa.update(study).values(status=study.c.status))

    def look(database):
        with database.begin(write=False) as txn:
            return [txn.first(LOCKS).n for _ in range(2)]

    turns = FixedTurns([0, 0, 1, 1, 0, 0, 1, 1])  # the first SELECT is between the UPDATEs
    walk = RandomWalk(stage.database, Random(0))
    with step_by_step():
        result = stage.interleaver.run([write, look], turns, clock=walk.clock)

    assert result.answers == [None, [1, 0]]


class FixedTurns:
    """Replaces the random generator; gives turns to calls in a fixed order."""

    def __init__(self, turns):
        self.turns = iter(turns)

    def choice(self, waiting):
        turn = next(self.turns)
        return next(client for client in waiting if client.place == turn)


def run_concurrently(stage, plan, seed, **options):
    rng = Random(f"{plan} {seed}")
    if n_writers(plan) > 1:
        options |= {"max_concurrent": rng.choice([None, 3])}
    if "promote" in plan:
        options |= {
            "scheduler": rng.choice([*PROMOTIONS, *CUSTOM_PROMOTIONS, END_GAME]),
            "rules": (),
        }
    walk = RandomWalk(stage.database, rng, num_trials=rng.choice([2, 3, 6]), **options)
    for _ in range(rng.randint(2, 12)):
        walk.step(rng)
    prepare(walk, plan, rng)
    if "promote" in plan:
        pause_trials_at_rungs(walk, rng)
    actions = actions_of(walk, plan, rng)
    ended = ended_rows(stage.database, walk.study)

    with rng.choice([nullcontext, step_by_step])():
        result = stage.interleaver.run([action.act for action in actions], rng, clock=walk.clock)

    message = f"seed {seed}: {[action.name for action in actions]}, {result}"
    assert result.faults == [], message
    assert broken_promises(stage.database, walk.study) == {}, message
    assert ended.items() <= ended_rows(stage.database, walk.study).items(), message
    shown = take_snapshot(stage.database, walk.study)
    assert explaining_order(walk.model, actions, result.answers, shown) is not None, message
    return result


def n_writers(plan):
    return sum(
        name in {"report", "finish", "give_back", "save", "save_upload", "mark_corrupt"}
        for name in plan
    )


def prepare(walk, plan, rng):
    """Make it likely that the study has the trials, attempts and checkpoints for the plan."""
    if any(name.startswith("zombie") for name in plan):
        walk.take_a_trial(rng)
        walk.expire_leases(rng)
    for _ in range(6):
        if len(walk.attempts(held=True)) < max(2, n_writers(plan)):
            walk.take_a_trial(rng)
    if "mark_corrupt" in plan:
        walk.do(walk.factory.save(rng.choice(walk.attempts(held=True))))
        walk.expire_leases(rng)
        walk.take_a_trial(rng)
    if "claim" in plan and rng.random() < 0.8:
        walk.do(walk.factory.set_status(Status.RUNNING))
        # If a limit has stopped the study, it stays stopped; none of its new trials is runnable.
        for _ in range(rng.randint(1, 2) - len(walk.model.runnable)):
            walk.do(walk.factory.extend(by=1))
            walk.do(walk.factory.enqueue())
    if "ask" in plan and not walk.model.is_open:
        walk.do(walk.factory.extend(by=1))
    prepare_uploads_and_sweeps(walk, plan, rng)
    if "retry" in plan or "reinstate" in plan:
        finish_some(walk, rng)


def prepare_uploads_and_sweeps(walk, plan, rng):
    if "enqueue_an_upload" in plan:
        walk.do(walk.factory.begin_upload_of_person())
        if rng.random() < 0.3:
            walk.advance(DAY_AND_HOUR_S)
    if any(name.startswith("enqueue_from") for name in plan):
        for attempt in walk.attempts(held=True):
            walk.do(walk.factory.save(attempt))
    if "save_upload" in plan or "collect" in plan:
        for attempt in walk.attempts(held=True):
            walk.do(walk.factory.begin_upload(attempt))
    if "recover" in plan and rng.random() < 0.8:
        walk.make_suspect(rng.choice(LEASES_S))
    if "recover_host" in plan:
        walk.crash(rng)


def finish_some(walk, rng):
    """End at most two trials, some of them after a save; take another trial after each end."""
    for attempt in walk.attempts(held=True)[:2]:
        if rng.random() < 0.7:
            walk.do(walk.factory.save(attempt))
        walk.do(walk.factory.finish(attempt, [0.5], rng.choice([Reason.FAILED, Reason.COMPLETED])))
        walk.take_a_trial(rng)


def pause_trials_at_rungs(walk, rng):
    for _ in range(4):
        walk.take_a_trial(rng)
    walk.carry_out_verdicts(rng)


def actions_of(walk, plan, rng):
    actions = []
    for name in plan:
        action = actions[-1] if name == AGAIN else walk.action(name, rng)
        if action is not None:
            actions.append(action)
    return actions
