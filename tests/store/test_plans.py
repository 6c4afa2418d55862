"""The plans of the hot statements on many trials: each goes through its partial index."""

from datetime import UTC, datetime

import pytest
from arrange import LEASE_S, SimulatedWorker, enqueued, new_study, token

from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import Cut
from studydb.domain.records import Lease, Process
from studydb.domain.states import Mode, Status
from studydb.operations.look import look
from studydb.schedulers import ASHA
from studydb.store import counters, leases, results, rungs, studies, sweeps, trials

NOW = datetime(2026, 1, 1, tzinfo=UTC)

MANY = 5000
ENTRIES = 3000

COLUMNS = """
    INSERT INTO trial (uuid, study_id, number, state, reason, params, params_hash, space_version,
        origin, draw, counted, priority, ready, resource_class, bracket, attempt, failures, losses,
        flush_no, checkpoint_step, n_results, best_value, best_score, rank_score, created_at, ended_at)
    SELECT 'u' || n, {study}, n + 1000, 'TERMINATED', 'COMPLETED', '{{}}', 'h', 1,
        'searcher', n + 1000, {true}, 0, {false}, '', 0, 1, 0, 0,
        0, 0, 1, n, n, n, {now}, {now}
    FROM {numbers}
"""
ENTRY = """
    INSERT INTO rung_entry (rung_id, trial_id, attempt, step, value, score, ranked, ordinal, action,
        recorded_at)
    SELECT (SELECT min(id) FROM rung WHERE study_id = {study}), n + 100000, 1, 1, n, n, {true}, n,
        'CONTINUE', {now}
    FROM {numbers}
"""
RESULT = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, reported_at)
    SELECT {study}, n, 1, 1, n, {now} FROM {numbers}
"""
POSTGRESQL = {
    "true": "true",
    "false": "false",
    "now": "now()",
    "numbers": "generate_series(1, {most}) n",
}
SQLITE = {
    "true": "1",
    "false": "0",
    "now": "'2026-01-01 00:00:00.000'",
    "numbers": "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {most}) SELECT n FROM c)",
}


def fill(database, study, statement, most):
    spelling = POSTGRESQL if database.postgresql else SQLITE
    numbers = spelling["numbers"].format(most=most)
    with database.begin() as txn:
        txn.raw(statement.format(**spelling | {"study": study.id, "numbers": numbers}))


@pytest.fixture
def study(database):
    """Five thousand trials that have ended, and three of each other kind."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3), num_trials=None)
    fill(database, study, COLUMNS, MANY)
    fill(database, study, ENTRY, ENTRIES)
    fill(database, study, RESULT, MANY)
    worker = SimulatedWorker(database, study)
    for _ in range(3):
        worker.ask()
    for _ in range(3):
        enqueued(database, study)
    with database.begin() as txn:
        txn.raw("ANALYZE")
    return study


def plans(database, call):
    """The plan of every statement that a call runs, as text."""
    explained = []
    with database.begin() as txn:
        execute = txn._execute

        def execute_explained(compiled, params):
            explained.append(explain(txn, compiled, params))
            return execute(compiled, params)

        txn._execute = execute_explained
        call(txn)
        txn.abandon()
    assert explained
    return explained


def explain(txn, compiled, params):
    bound = compiled.bind({"now": NOW} | params)
    prefix = "EXPLAIN " if txn.postgresql else "EXPLAIN QUERY PLAN "
    cursor = txn._connection.cursor()
    found = cursor.execute(prefix + compiled.sql, bound).fetchall()
    return "\n".join(str(row[-1]) for row in found)


def is_scan(plan):
    """Whether the plan reads a table from end to end, an index from end to end, or sorts much."""
    lines = [line.strip() for line in plan.splitlines()]
    return any(
        line.removeprefix("->  ").startswith(("Seq Scan on", "SCAN "))
        and not any(small in line for small in ("runnable", "json_each", "CONSTANT", *SMALL))
        for line in lines
    )


SMALL = ("study", "counter", "on rung ", "SCAN rung", "worker", "attempt", "expired", "waited")
