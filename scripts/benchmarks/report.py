"""Reports that store batches of results, without a decision."""

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import click
import psycopg

from benchmarks import options, ours, places, raw, raw_sql
from benchmarks.against import Subject, compare
from benchmarks.rounds import Contest, measure, show
from benchmarks.space import STUDY
from benchmarks.teams import Plan, Step
from studydb.db import Database, connect
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import LEASE_S, Batch, Claimant
from studydb.operations import report as operation
from studydb.operations.ask import ask
from studydb.operations.create import load

OURS, RAW = "studydb", "raw, 1 call a batch"


@click.command()
@options.turns(processes=(16,), rounds=5, seconds=1.0)
@options.against
@click.option("--rows", type=click.IntRange(1, 100_000), default=100, help="Results in a batch.")
def report(*, rows: int, turns: options.Turns, commit: str | None) -> None:
    """
    Results per second, in batches, on PostgreSQL; each client runs one trial.

    studydb is compared with one raw statement per batch, which checks the fence, inserts the rows
    by unnest and updates the trial's summary.
    """
    if commit is not None:
        compare(_subject(rows), commit, turns)
        return
    with (
        places.postgresql_server(fsync=turns.fsync) as server,
        places.databases(server, "ours", "raw") as urls,
    ):
        for url in urls.values():
            ours.create(places.with_tables(url))
        contest = Contest(
            unit="results/s",
            plans={(OURS, RAW): Plan(build, {"urls": urls, "rows": rows})},
            ours={OURS: [RAW]},
        )
        outcome = measure(contest, turns, {"rows": rows, **places.conditions(server)})
    show(outcome, as_json=turns.as_json)


def _subject(rows: int) -> Subject:
    return Subject(
        unit="results/s",
        contenders=(OURS,),
        build="benchmarks.report:build",
        options=lambda url: {"urls": {"ours": url, "raw": url}, "rows": rows},
    )


def build(
    stack: ExitStack, *, index: int, urls: Mapping[str, str], rows: int
) -> Mapping[str, Step]:
    """Return the steps: a batch through studydb's operation, and a batch in one raw statement."""
    database = stack.enter_context(closing(connect(urls["ours"], connections=1)))
    connection = stack.enter_context(raw.connect(urls["raw"]))
    return {OURS: _ours(database, index, rows), RAW: _raw(connection, index, rows)}


def _ours(database: Database, index: int, rows: int) -> Step:
    study = load(database, STUDY)
    claim = ask(database, study, Claimant(index + 1, uuid4().hex, LEASE_S))
    assert claim is not None
    flush_no, summary = 0, Summary()

    def step() -> int:
        nonlocal flush_no, summary
        after, now_s = flush_no * rows, time.monotonic()
        flush_no += 1
        results = tuple(
            Result(after + number, random.random(), {}, now_s) for number in range(1, rows + 1)
        )
        batch = Batch(flush_no, results, after, summary)
        answer = operation.report(database, study, lease=claim.lease, batch=batch)
        assert answer.summary is not None
        summary = answer.summary
        return rows

    return step


def _raw(connection: psycopg.Connection[Any], index: int, rows: int) -> Step:
    trial = raw.start(connection, {"study": 1, "worker": index + 1, "shard": index % raw.SHARDS})
    flush_no = 0

    def step() -> int:
        nonlocal flush_no
        after, now_s = flush_no * rows, time.monotonic()
        flush_no += 1
        values = [random.random() for _ in range(rows)]
        batch: dict[str, Any] = {
            "steps": list(range(after + 1, after + rows + 1)),
            "values": values,
            "times": [now_s] * rows,
            "n": after + rows,
            "step": after + rows,
            "value": values[-1],
            "time": now_s,
            "flush": flush_no,
        }
        stored = connection.execute(raw_sql.REPORT_MANY, trial | batch, prepare=True)
        assert stored.rowcount == 1
        return rows

    return step
