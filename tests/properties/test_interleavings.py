"""
Operations that get in each other's way, statement by statement: PostgreSQL, two or three connections.

Whatever the schedule, the answers and the rows are those of some order one after another, every
promise is kept, and nobody runs into a deadlock. `STUDYDB_SCHEDULES=200` plays more of them.
"""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from random import Random
from uuid import uuid4

import pytest
import sqlalchemy as sa
from harness import postgres
from harness.interleaver import Interleaver, step_by_step
from harness.random_walk import LEASES_S, Life
from harness.row_invariants import broken_promises, ended_rows
from harness.serial_orders import explaining_order
from harness.snapshot import picture

from studydb.db import Database, Prepared, connect
from studydb.db.schema import study
from studydb.domain.life.states import Status

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))
"""Per plan."""

LOCKS = Prepared(
    sa.text("""
        SELECT count(*) AS n FROM pg_locks WHERE relation = 'study'::regclass
            AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid()
    """).columns(sa.column("n", sa.Integer))
)

AGAIN = "again"
"""The call before, sent again while its first send is on its way."""

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
    ("report", "report"),
    ("report", "report", "report"),
    ("report", AGAIN),
    ("report", "stop"),
    ("report", "pause", "claim"),
    ("report", "recover"),
    ("report", "halt_the_study"),
    ("finish", AGAIN),
    ("finish", "stop"),
    ("finish", "recover"),
    ("finish", "claim"),
    ("finish", "report", "report"),
    ("save", AGAIN),
    ("save", "recover"),
    ("save", "finish", "recover"),
    ("condemn", "recover"),
    ("renew", "renew"),
    ("renew", "stop"),
    ("renew", "recover"),
    ("renew", "recover_host"),
    ("tell", "recover"),
    ("pause", "claim"),
    ("pause", "stop"),
    ("stop", "stop"),
    ("stop", AGAIN, "claim"),
    ("resume", "claim", "pause"),
    ("resume", "recover"),
    ("resume", "renew"),
    ("resume", "finish"),
    ("pause", "resume", "finish"),
    ("stop", "resume", "report"),
    ("halt_the_study", "finish"),
    ("halt_the_study", "resume_the_study", "finish"),
    ("resume_the_study", "finish"),
    ("resume_the_study", "claim"),
    ("recover", "recover"),
    ("recover", "recover_host"),
    ("recover", "claim"),
    ("recover", "claim", "stop"),
    ("halt_the_study", "claim", "ask"),
    ("resume_the_study", "recover"),
    ("zombie_report", "claim", "recover"),
    ("zombie_finish", "recover"),
]


@dataclass
class Stage:
    """A database in which every schedule has a study of its own."""

    database: Database
    interleaver: Interleaver


@pytest.fixture(scope="module")
def stage(postgres_server, postgres_template):
    name = f"studydb_test_{uuid4().hex}"
    url = postgres.create_database(postgres_server, name, template=postgres_template)
    database, interleaver = connect(url), Interleaver(url)
    yield Stage(database, interleaver)
    interleaver.close()
    database.close()
    postgres.drop_database(postgres_server, name)


@pytest.mark.parametrize("plan", PLANS, ids=" ".join)
def test_rivals_leave_what_some_order_of_them_would_leave(stage, plan):
    for seed in range(SCHEDULES):
        compete(stage, plan, seed)


@pytest.mark.parametrize("plan", [("report", "stop"), ("ask", "claim"), ("recover", "renew")])
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_gives_the_same_schedule_again(stage, plan, seed):
    assert compete(stage, plan, seed).schedule == compete(stage, plan, seed).schedule


def test_rivals_take_turns_and_differently_from_seed_to_seed(stage):
    played = [compete(stage, ("report", "report"), seed).schedule for seed in range(8)]

    orders = {tuple(turn[0] for turn in schedule) for schedule in played}
    assert sum(len(list(groupby(order))) > 2 for order in orders) > 2  # in turns, not in a row


def test_a_step_is_a_statement_that_the_server_has_carried_out(stage):
    def write(database):
        with database.begin() as txn:
            txn.run(sa.update(study).values(status=study.c.status))
            txn.run(sa.update(study).values(status=study.c.status))

    def look(database):
        with database.begin(write=False) as txn:
            return [txn.first(LOCKS).n for _ in range(2)]

    order = Script([0, 0, 1, 1, 0, 0, 1, 1])  # the first look is between the two UPDATEs
    life = Life(stage.database, Random(0))
    with step_by_step():
        played = stage.interleaver.play([write, look], order, clock=life.clock)

    assert played.answers == [None, [1, 0]]


class Script:
    """In place of a generator: whose turn it is, one after another."""

    def __init__(self, turns):
        self.turns = iter(turns)

    def choice(self, waiting):
        turn = next(self.turns)
        return next(player for player in waiting if player.place == turn)


def compete(stage, plan, seed):
    rng = Random(f"{plan} {seed}")
    room = {"max_concurrent": rng.choice([None, 3])} if n_writers(plan) > 1 else {}
    life = Life(stage.database, rng, num_trials=rng.choice([2, 3, 6]), **room)
    for _ in range(rng.randint(2, 12)):
        life.step(rng)
    prepare(life, plan, rng)
    deeds = deeds_of(life, plan, rng)
    ended = ended_rows(stage.database, life.study)

    with rng.choice([nullcontext, step_by_step])():
        played = stage.interleaver.play([deed.act for deed in deeds], rng, clock=life.clock)

    told = f"seed {seed}: {[deed.name for deed in deeds]}, {played}"
    assert played.faults == [], told
    assert broken_promises(stage.database, life.study) == {}, told
    assert ended.items() <= ended_rows(stage.database, life.study).items(), told
    shown = picture(stage.database, life.study)
    assert explaining_order(life.model, deeds, played.answers, shown) is not None, told
    return played


def n_writers(plan):
    return sum(name in {"report", "finish", "save", "condemn"} for name in plan)


def prepare(life, plan, rng):
    """Make what the plan is about likely: somebody who writes, something to take or to claim."""
    if any(name.startswith("zombie") for name in plan):
        life.take_a_trial(rng)
        life.be_silent(rng)
    for _ in range(6):
        if len(life.hands(held=True)) < max(2, n_writers(plan)):
            life.take_a_trial(rng)
    if "condemn" in plan:
        life.do(life.company.save(rng.choice(life.hands(held=True))))
        life.be_silent(rng)
        life.take_a_trial(rng)
    if "claim" in plan and rng.random() < 0.8:
        life.do(life.company.set_status(Status.RUNNING))
        while len(life.model.runnable) < rng.randint(1, 2):
            life.do(life.company.extend(by=1))
            life.do(life.company.enqueue())
    if "ask" in plan and not life.model.is_open:
        life.do(life.company.extend(by=1))
    if "recover" in plan and rng.random() < 0.8:
        life.raise_doubts(rng.choice(LEASES_S))
    if "recover_host" in plan:
        life.crash(rng)


def deeds_of(life, plan, rng):
    deeds = []
    for name in plan:
        deed = deeds[-1] if name == AGAIN else life.deed(name, rng)
        if deed is not None:
            deeds.append(deed)
    return deeds
