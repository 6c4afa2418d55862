"""Raw psycopg with prepared statements that write the same rows as studydb."""

import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

import psycopg

from benchmarks import raw_sql
from benchmarks.space import LR, METRIC, MOMENTUM, REPORTS, WIDTH, loss
from benchmarks.teams import Step

COMMITS, STATEMENTS, TWO = (
    "raw, 4 calls a step",
    "raw, 1 call a step",
    "raw, 2 calls a trial",
)

SHARDS = 8


INDEXES_ONLY = "-c enable_seqscan=off"
"""
A plan that is prepared while a table is empty scans it, and still does so when the table has grown.
"""


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    """Connect as the measured raw statements do."""
    return psycopg.connect(url, autocommit=autocommit, options=INDEXES_ONLY)


def build(*, index: int, url: str) -> tuple[Mapping[str, Step], Callable[[], None]]:
    """Trials in transactions of several statements, and in single statements."""
    many, single = connect(url, autocommit=False), connect(url)
    common = {"study": 1, "worker": index + 1, "shard": index % SHARDS}
    steps = {
        COMMITS: lambda: _run_in_transactions(many, common),
        STATEMENTS: lambda: _run_in_statements(single, common),
        TWO: lambda: _run_in_two(single, common),
    }

    def close() -> None:
        many.close()
        single.close()

    return steps, close


def _new(common: Mapping[str, Any]) -> dict[str, Any]:
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
    trial = _new(common)
    _start_in_steps(connection, trial)
    values = []
    for step in range(1, REPORTS + 1):
        trial |= _reported(trial, step)
        values.append(trial["value"])
        _run(connection, raw_sql.HOLD, trial)
        _run(connection, _THIS_RESULT, trial)
        _run(connection, _RECORD_THIS, trial)
        connection.commit()
    trial["summary"] = _summary(values)
    for statement in (raw_sql.HOLD, _END_THIS, _CLOSE_THIS, raw_sql.COUNT_OUT):
        _run(connection, statement, trial)
    connection.commit()
    return 1


def _start_in_steps(connection: psycopg.Connection[Any], trial: dict[str, Any]) -> None:
    _run(connection, raw_sql.COUNT_IN, trial)
    trial["number"], trial["draw"] = _run(connection, raw_sql.DRAW, trial).fetchone()
    trial["trial"] = _run(connection, _INSERT_DRAWN, trial).fetchone()[0]
    _run(connection, _INSERT_FIRST, trial)
    connection.commit()


def start(connection: psycopg.Connection[Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Make a RUNNING trial in one statement; return the parameters of the other statements."""
    trial = _new(common)
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
    reported = [_reported(trial, step) for step in range(1, REPORTS + 1)]
    values = [one["value"] for one in reported]
    trial |= reported[-1] | {
        "flush": 1,
        "steps": [one["step"] for one in reported],
        "values": values,
        "times": [one["time"] for one in reported],
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


def _run(connection: psycopg.Connection[Any], statement: str, params: Mapping[str, Any]) -> Any:
    return connection.execute(statement, params, prepare=True)


_INSERT_DRAWN = raw_sql.INSERT_TRIAL.format(drawn=raw_sql.THIS_DRAW)
_INSERT_FIRST = raw_sql.INSERT_ATTEMPT.format(made=raw_sql.NEW_TRIAL)
_THIS_RESULT = raw_sql.INSERT_RESULT.format(held=raw_sql.THIS_TRIAL)
_RECORD_THIS = raw_sql.RECORD.format(held=raw_sql.THIS_ID)
_END_THIS = raw_sql.END_TRIAL.format(held=raw_sql.THIS_ID)
_CLOSE_THIS = raw_sql.END_ATTEMPT.format(held=raw_sql.THIS_ID)
