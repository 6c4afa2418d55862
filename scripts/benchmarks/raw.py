"""Raw psycopg with prepared statements that write the same rows as studydb."""

import hashlib
import json
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg

from benchmarks import raw_sql
from benchmarks.space import LR, METRIC, MOMENTUM, REPORTS, WIDTH, loss
from benchmarks.teams import Step

TRANSACTION_PER_STEP = "raw, 4 calls a step"
STATEMENT_PER_STEP = "raw, 1 call a step"
TWO_STATEMENTS_PER_TRIAL = "raw, 2 calls a trial"

SHARDS = 8

INDEXES_ONLY = "-c enable_seqscan=off"
"""Without this option, a plan made while a table was empty would later scan the large table."""


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=autocommit, options=INDEXES_ONLY)


def build(stack: ExitStack, *, index: int, url: str) -> Mapping[str, Step]:
    """Return the steps: a trial in transactions, in a statement per step, or in two statements."""
    several = stack.enter_context(connect(url, autocommit=False))
    single = stack.enter_context(connect(url))
    common = {"study": 1, "worker": index + 1, "shard": index % SHARDS}
    return {
        TRANSACTION_PER_STEP: lambda: _run_in_transactions(several, common),
        STATEMENT_PER_STEP: lambda: _run_in_statements(single, common),
        TWO_STATEMENTS_PER_TRIAL: lambda: _run_in_two(single, common),
    }


def _new_trial(common: Mapping[str, Any]) -> dict[str, Any]:
    params = {
        "lr": LR[0] * (LR[1] / LR[0]) ** random.random(),
        "width": random.randint(*WIDTH),
        "momentum": random.uniform(*MOMENTUM),
    }
    text, token = json.dumps(params), uuid4().hex
    return {
        **common,
        "momentum": params["momentum"],
        "params": text,
        "params_hash": hashlib.sha256(text.encode()).hexdigest()[:32],
        "token": token,
        "uuid": str(UUID(hex=token)),
    }


def _run_in_transactions(connection: psycopg.Connection[Any], common: Mapping[str, Any]) -> int:
    trial = _new_trial(common)
    _run(connection, raw_sql.COUNT_IN, trial)
    trial["number"], trial["draw"] = _run(connection, raw_sql.DRAW, trial).fetchone()
    trial["trial"] = _run(connection, raw_sql.INSERT_TRIAL_ALONE, trial).fetchone()[0]
    _run(connection, raw_sql.INSERT_ATTEMPT_ALONE, trial)
    connection.commit()
    values = []
    for step in range(1, REPORTS + 1):
        trial |= _reported(trial, step)
        values.append(trial["value"])
        _run(connection, raw_sql.HOLD, trial)
        _run(connection, raw_sql.INSERT_RESULT_ALONE, trial)
        _run(connection, raw_sql.RECORD_ALONE, trial)
        connection.commit()
    trial["summary"] = _summary(values)
    _run(connection, raw_sql.HOLD, trial)
    _run(connection, raw_sql.END_TRIAL_ALONE, trial)
    _run(connection, raw_sql.END_ATTEMPT_ALONE, trial)
    _run(connection, raw_sql.COUNT_OUT, trial)
    connection.commit()
    return 1


def start(connection: psycopg.Connection[Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Make a RUNNING trial in one statement; return the binds of the trial's later statements."""
    trial = _new_trial(common)
    trial["trial"] = _run(connection, raw_sql.START, trial).fetchone()[0]
    return trial


def _run_in_statements(connection: psycopg.Connection[Any], common: Mapping[str, Any]) -> int:
    trial = start(connection, common)
    values = []
    for step in range(1, REPORTS + 1):
        trial |= _reported(trial, step)
        values.append(trial["value"])
        _run(connection, raw_sql.REPORT, trial)
    _run(connection, raw_sql.FINISH, trial | {"summary": _summary(values)})
    return 1


def _run_in_two(connection: psycopg.Connection[Any], common: Mapping[str, Any]) -> int:
    trial = start(connection, common)
    reports = [_reported(trial, step) for step in range(1, REPORTS + 1)]
    values = [report["value"] for report in reports]
    trial |= reports[-1] | {
        "flush": 1,
        "steps": [report["step"] for report in reports],
        "values": values,
        "times": [report["time"] for report in reports],
        "summary": _summary(values),
    }
    _run(connection, raw_sql.REPORT_AND_FINISH, trial)
    return 1


def _reported(trial: Mapping[str, Any], step: int) -> dict[str, Any]:
    value = loss(trial["momentum"], step)
    return {"step": step, "n": step, "flush": step, "value": value, "time": time.monotonic()}


def _summary(values: list[float]) -> str:
    average = sum(values) / len(values)
    shown = {"min": min(values), "max": max(values), "avg": average, "last": values[-1]}
    return json.dumps({METRIC: shown})


def _run(connection: psycopg.Connection[Any], statement: str, binds: Mapping[str, Any]) -> Any:
    return connection.execute(statement, binds, prepare=True)
