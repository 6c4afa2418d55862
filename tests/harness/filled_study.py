"""Makes a study with thousands of rows in its tables, and shows the plans of statements."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.arrange import SimulatedWorker, enqueued, new_study
from studydb.db import Database
from studydb.domain.records import Study
from studydb.schedulers import ASHA

MANY = 5000
"""
The number of ended trials; also the number of PENDING trials, and of results.

Each of these trials has an attempt.
"""

ENTRIES = 3000
"""The number of entries of the first rung."""

_TRIAL = """
    INSERT INTO trial (uuid, study_id, number, state, reason, params, config, params_hash, space_version,
        origin, draw, counted, priority, ready, resource_class, bracket, attempt, failures, losses,
        flush_no, checkpoint_step, n_results, best_value, best_score, rank_score, created_at,
        ended_at)
    SELECT '{kind}0000-0000-4000-8000-' || substr(CAST(1000000000000 + n AS text), 2),
        {study}, n + {first}, '{state}', {reason}, '{{}}', '{{}}', 'h', 1, 'searcher', n + {first}, {true}, 0, {ready}, '', 0, 1, 0, 0,
        0, 0, 1, n, n, n, {now}, {ended}
    FROM {numbers}
"""
_ENDED = {"state": "TERMINATED", "reason": "'COMPLETED'", "ended": "{now}"}
_ENDED |= {"ready": "{false}", "first": "1000", "kind": "eded"}
_PENDING = {"state": "PENDING", "reason": "NULL", "ended": "NULL"}
_PENDING |= {"ready": "{true}", "first": "90000", "kind": "aaaa"}
_ENTRY = """
    INSERT INTO rung_entry (rung_id, trial_id, attempt, step, value, score, ranked, ordinal, action,
        recorded_at)
    SELECT (SELECT min(id) FROM rung WHERE study_id = {study}), n + 100000, 1, 1, n, n, {true}, n,
        'CONTINUE', {now}
    FROM {numbers}
"""
_ATTEMPT = """
    INSERT INTO attempt (trial_id, attempt, study_id, token, config, start_step, live_through,
        flush_no, started_at)
    SELECT id, 1, {study}, 't' || id, '{{}}', 1, 9, 0, {now} FROM trial WHERE study_id = {study}
"""
_RESULT = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, reported_at)
    SELECT {study}, n, 1, 1, n, {now} FROM {numbers}
"""
_POSTGRESQL = {
    "true": "true",
    "false": "false",
    "now": "now()",
    "numbers": "generate_series(1, {limit}) n",
}
_SQLITE = {
    "true": "1",
    "false": "0",
    "now": "'2026-01-01 00:00:00.000'",
    "numbers": """(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {limit})
        SELECT n FROM c)""",
}


def filled_study(database: Database) -> Study:
    """A study with thousands of ended and PENDING trials, three RUNNING ones and three enqueued."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3), num_trials=None)
    _fill(database, study, _TRIAL, MANY, **_ENDED)
    _fill(database, study, _TRIAL, MANY, **_PENDING)
    _fill(database, study, _ATTEMPT, MANY)
    _fill(database, study, _ENTRY, ENTRIES)
    _fill(database, study, _RESULT, MANY)
    worker = SimulatedWorker(database, study)
    for _ in range(3):
        worker.ask()
    for _ in range(3):
        enqueued(database, study)
    with database.begin() as txn:
        txn.raw("ANALYZE")
    return study


def _fill(database: Database, study: Study, statement: str, limit: int, **more: str) -> None:
    spelling = _POSTGRESQL if database.postgresql else _SQLITE
    given = {
        "study": study.id,
        "numbers": spelling["numbers"].format(limit=limit),
        **{name: text.format(**spelling) for name, text in more.items()},
    }
    with database.begin() as txn:
        txn.raw(statement.format(**spelling | given))


def explain_sqlite(cursor: Any, sql: str, bound: Mapping[str, Any]) -> str:
    """The plan of a statement with `:name` binds."""
    return "\n".join(row[-1] for row in cursor.execute(f"EXPLAIN QUERY PLAN {sql}", bound))


def explain_postgresql(cursor: Any, sql: str, bound: Mapping[str, Any]) -> str:
    """A statement's plan for these values, and its generic plan; binds are `%(name)s`."""
    lines = cursor.execute(f"EXPLAIN {sql}", bound).fetchall()
    return "\n".join([*(row[0] for row in lines), *generic_plan(cursor, sql)])


def generic_plan(cursor: Any, sql: str, options: Sequence[str] = ()) -> list[str]:
    """The plan that PostgreSQL may use for a prepared statement after five executions."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    numbered = re.sub(r"%\((\w+)\)s", lambda name: f"${names.index(name[1]) + 1}", sql)
    values = f"({', '.join(['NULL'] * len(names))})" if names else ""
    cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE generic AS {numbered.replace('%%', '%')}")
    given = f"({', '.join(options)}) " if options else ""
    lines = cursor.execute(f"EXPLAIN {given}EXECUTE generic{values}").fetchall()
    cursor.execute("DEALLOCATE generic")
    return [row[0] for row in lines]
