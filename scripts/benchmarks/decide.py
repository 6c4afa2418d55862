"""Reports that ASHA judges at one rung."""

import math
import random
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import click

from benchmarks import loading, options, places, raw, raw_sql, running
from benchmarks.rounds import Contest, measure, show
from benchmarks.space import STUDY
from benchmarks.teams import Plan, Step
from studydb.db import connect
from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import Cut, Position, cutoff, insert
from studydb.domain.records import Batch, Lease
from studydb.operations.create import load
from studydb.operations.report import report

OURS, RAW = "studydb", "raw, 4 calls"
DATABASES = {OURS: "ours", RAW: "raw"}

REPORTS_PER_S = 600
"""RUNNING trials for each client and second: more than the reports that a client can send."""


@click.command()
@options.turns(processes=(16,), rounds=7, seconds=1.0)
@click.option(
    "--entries",
    type=click.IntRange(10),
    default=1_000_000,
    help="Entries of the rung at the start; COPY loads the entries and their trials.",
)
def decide(*, entries: int, turns: options.Turns) -> None:
    """
    ASHA decisions per second at one rung, on PostgreSQL.

    The other contender makes four calls: three raw statements and COMMIT. The first locks the rung;
    the second locks the trial under its fence, and reads the entries next to the rung's cut; the
    third writes result, entry, rung and trial.
    """
    with (
        places.postgresql_server(fsync=turns.fsync) as server,
        places.databases(server, "ours") as urls,
    ):
        loading.load(places.with_tables(urls["ours"]), trials=entries)
        with places.copy(server, urls["ours"]) as url:
            urls |= {"raw": url}
            clients = max(turns.processes)
            each = math.ceil(REPORTS_PER_S * max(turns.seconds, 0.5))
            contest = Contest(
                unit="decisions/s",
                plans={(OURS, RAW): Plan(build, {"urls": urls})},
                ours={OURS: [RAW]},
                before=lambda name: running.fill(urls[DATABASES[name]], workers=clients, each=each),
            )
            outcome = measure(contest, turns, {"entries": entries, **places.conditions(server)})
    show(outcome, as_json=turns.as_json)


def build(stack: ExitStack, *, index: int, urls: Mapping[str, str]) -> Mapping[str, Step]:
    """Return the steps: a decision by studydb's operation, and a decision by raw statements."""
    database = stack.enter_context(closing(connect(urls["ours"], connections=1)))
    study = load(database, STUDY)
    ours, theirs = (stack.enter_context(raw.connect(urls[name])) for name in ("ours", "raw"))
    our_leases = running.Leases(ours, worker_id=index + 1)
    raw_leases = running.Leases(theirs, worker_id=index + 1)

    def decide_ours() -> int:
        result = Result(loading.MILESTONE, _value(), {}, 1.0)
        report(database, study, lease=our_leases.take(), batch=Batch(1, (result,), 0, Summary()))
        return 1

    def decide_raw() -> int:
        lease = raw_leases.take()
        with theirs.transaction():
            _decide_raw(theirs, lease, _value())
        return 1

    return {OURS: decide_ours, RAW: decide_raw}


def _value() -> float:
    """A value between the best and the worst of the loaded trials."""
    return random.uniform(0.2, 1.2)


def _decide_raw(connection: Any, lease: Lease, value: float) -> None:
    binds = {"study": 1, "trial": lease.trial_id, "token": lease.token, "step": loading.MILESTONE}
    locked = connection.execute(raw_sql.LOCK_RUNG, binds, prepare=True).fetchone()
    rung, n_entries, n, rank, score, trial, quantile = locked
    cut = Cut(n, rank, None if trial is None else (score, trial))
    binds |= {"rung": rung, "score": score or 0.0, "cut": trial or 0}
    neighbours = connection.execute(raw_sql.HOLD_BESIDE_CUT, binds, prepare=True).fetchone()
    worse, better = _entry(*neighbours[:2]), _entry(*neighbours[2:])
    limit = cutoff(cut, better, quantile)
    moved = insert(cut, (value, lease.trial_id), worse=worse, better=better, quantile=quantile)
    stops = limit is not None and value > limit
    binds |= {
        "value": value,
        "cutoff": limit,
        "ordinal": n_entries,
        "action": "STOP" if stops else "CONTINUE",
        "verdict": "STOP" if stops else None,
        "reason": "EARLY_STOPPED" if stops else None,
        "by": "scheduler" if stops else None,
        "time": 1.0,
        "n": 1,
        "flush": 1,
        "to_n": moved.n,
        "to_rank": moved.rank,
        "to_score": moved.entry and moved.entry[0],
        "to_trial": moved.entry and moved.entry[1],
    }
    stored = connection.execute(raw_sql.DECIDE, binds, prepare=True)
    assert stored.rowcount == 1


def _entry(score: float | None, trial_id: int | None) -> Position | None:
    return None if score is None or trial_id is None else (score, trial_id)
