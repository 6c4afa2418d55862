"""
A large study, loaded by COPY: the rows of many completed trials with ten results each.

Each trial is better at the study's only rung than all earlier trials. So no trial was stopped
there, and the rung's row (see domain/quantile.py, `Cut`) is computed without a million decisions.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from harness import postgres

import studydb
from benchmarks import ours
from benchmarks.space import LR, METRIC, MOMENTUM, REPORTS, WIDTH, loss
from studydb.db.schema import NOT_SUPERSEDED
from studydb.domain.metrics import Result
from studydb.domain.quantile import Cut, Position, cutoff
from studydb.domain.space.search_space import params_hash
from studydb.domain.tally import Tally

MILESTONE = 5
"""The step of the only rung."""

SCHEDULER = studydb.ASHA(max_t=REPORTS, grace_period=MILESTONE, reduction_factor=3)

VALUES = (0.2, 1.2)
"""The lowest and the highest value that a loaded trial may have at the rung."""

TRIALS_PER_BLOCK = 5_000
TOKEN_BITS = 128
AT = "2026-01-01 00:00:00+00"

Row = Mapping[str, Any]

COUNT = (
    "UPDATE study SET next_number = %(n)s, next_draw = %(n)s, n_counted = %(n)s",
    "UPDATE counter SET terminated = %(n)s WHERE shard = 0",
    """UPDATE rung SET n_entries = %(n)s, n_ranked = %(n)s, cut_rank = %(rank)s,
        cut_score = %(score)s, cut_trial_id = %(trial)s""",
    "SELECT setval(pg_get_serial_sequence('trial', 'id'), %(n)s)",
)


def load(url: str, *, trials: int) -> None:
    """
    Create a study with ASHA, without a budget, and with `trials` completed trials.

    The database must have studydb's tables without rows, because the study and the rung need id 1.
    """
    ours.create(url, scheduler=SCHEDULER)
    with postgres.connect(url) as connection:
        for first in range(0, trials, TRIALS_PER_BLOCK):
            for table, rows in _block(range(first, min(first + TRIALS_PER_BLOCK, trials)), trials):
                _copy(connection, table, rows)
        cut = _cut(trials, trials)
        score, trial_id = cut.entry or (None, None)
        binds = {"n": trials, "rank": cut.rank, "score": score, "trial": trial_id}
        for statement in COUNT:
            connection.execute(statement, binds)
    settle(url)


def settle(url: str) -> None:
    """Vacuum and write a checkpoint now, so that PostgreSQL does neither during the measurement."""
    with postgres.connect(url) as connection:
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")


def _copy(connection: psycopg.Connection[Any], table: str, rows: Sequence[Row]) -> None:
    columns = ", ".join(rows[0])
    text = "".join("\t".join(map(_text, row.values())) + "\n" for row in rows)
    with connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        copy.write(text)


def _text(value: object) -> str:
    return r"\N" if value is None else str(value)


def _block(numbers: Sequence[int], n_trials: int) -> Iterator[tuple[str, list[Row]]]:
    reports = [_reports(number, n_trials) for number in numbers]
    paramses = [_params() for _ in numbers]
    tokens = [f"{random.getrandbits(TOKEN_BITS):032x}" for _ in numbers]
    yield "trial", list(map(_trial, numbers, tokens, paramses, reports))
    yield "attempt", list(map(_attempt, numbers, tokens, paramses))
    yield (
        "result",
        [
            _result(number, result)
            for number, results in zip(numbers, reports, strict=True)
            for result in results
        ],
    )
    yield "rung_entry", [_entry(number, n_trials) for number in numbers]


def _params() -> dict[str, Any]:
    return {
        "lr": LR[0] * (LR[1] / LR[0]) ** random.random(),
        "width": random.randint(*WIDTH),
        "momentum": random.uniform(*MOMENTUM),
    }


def _reports(number: int, n_trials: int) -> list[Result]:
    return [
        Result(step, _value(number, step, n_trials), {"accuracy": 1 / (step + 1)}, 0.25 * step)
        for step in range(1, REPORTS + 1)
    ]


def _value(number: int, step: int, n_trials: int) -> float:
    """The value of a trial at a step; later trials and later steps have lower values."""
    return loss(1.0 - number / n_trials, step)


def _trial(number: int, token: str, params: Row, reports: Sequence[Result]) -> Row:
    last = reports[-1]
    return {
        "id": number + 1,
        "uuid": UUID(token),
        "study_id": 1,
        "number": number,
        "state": "TERMINATED",
        "reason": "COMPLETED",
        "params": json.dumps(params),
        "config": json.dumps(params),
        "params_hash": params_hash(params),
        "space_version": 1,
        "origin": "searcher",
        "draw": number,
        "counted": True,
        "priority": 0,
        "ready": False,
        "resource_class": "",
        "bracket": 0,
        "attempt": 1,
        "failures": 0,
        "losses": 0,
        "flush_no": 1,
        "checkpoint_step": 0,
        "n_results": len(reports),
        "last_step": last.step,
        "last_value": last.value,
        "best_value": last.value,
        "best_step": last.step,
        "best_score": last.value,
        "rank_score": last.value,
        "time_total_s": last.time_total_s,
        "metric_summary": json.dumps(Tally(METRIC).analysis(reports)),
        "created_at": AT,
        "started_at": AT,
        "ended_at": AT,
    }


def _attempt(number: int, token: str, params: Row) -> Row:
    return {
        "trial_id": number + 1,
        "attempt": 1,
        "study_id": 1,
        "token": token,
        "worker_id": 1,
        "config": json.dumps(params),
        "start_step": 1,
        "live_through": NOT_SUPERSEDED,
        "flush_no": 1,
        "reason": "COMPLETED",
        "started_at": AT,
        "ended_at": AT,
    }


def _result(number: int, result: Result) -> Row:
    return {
        "study_id": 1,
        "trial_id": number + 1,
        "attempt": 1,
        "step": result.step,
        "value": result.value,
        "metrics": f'{{"accuracy": {result.metrics["accuracy"]}}}',
        "time_total_s": result.time_total_s,
        "reported_at": AT,
    }


def _entry(number: int, n_trials: int) -> Row:
    value = _value(number, MILESTONE, n_trials)
    cut = _cut(number, n_trials)
    better = _arrival(cut.rank + 1, n_trials) if cut.rank + 1 < number else None
    return {
        "rung_id": 1,
        "trial_id": number + 1,
        "attempt": 1,
        "step": MILESTONE,
        "value": value,
        "score": value,
        "ranked": True,
        "ordinal": number,
        "action": "CONTINUE",
        "cutoff": cutoff(cut, better, SCHEDULER.quantile),
        "recorded_at": AT,
    }


def _cut(arrived: int, n_trials: int) -> Cut:
    """The rung's cut after `arrived` trials; trial k has rank k, because k trials are worse."""
    if not arrived:
        return Cut()
    rank = math.floor((arrived - 1) * SCHEDULER.quantile)
    return Cut(n=arrived, rank=rank, entry=_arrival(rank, n_trials))


def _arrival(number: int, n_trials: int) -> Position:
    return _value(number, MILESTONE, n_trials), number + 1
