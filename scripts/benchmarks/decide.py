"""Reports that schedulers judge at large rungs."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextlib import closing as closing_at_end
from dataclasses import dataclass, replace
from typing import Any

import click

import studydb
from benchmarks import (
    closing,
    loading,
    options,
    places,
    raw,
    raw_sql,
    rung_filling,
    running,
)
from benchmarks.rounds import Contest, measure, show
from benchmarks.rung_worker import RungWorker
from benchmarks.space import REPORTS, STUDY
from benchmarks.teams import Plan, Step
from studydb.db import Database, connect
from studydb.domain.life.decisions import RungKey
from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import Cut, Position, cutoff, insert
from studydb.domain.records import Batch, Lease, Study
from studydb.operations.create import load
from studydb.operations.report import report

OURS, RAW = "studydb", "raw, 4 calls"
DATABASES = {OURS: "ours", RAW: "raw"}

REPORTS_PER_S = 600
"""
How many RUNNING trials are made per client and second of a slice. Each report takes one of these
trials, and a client makes fewer reports in a second than this number.
"""


SCHEDULERS = ("stopping", "promotion", "median", "hyperband")


@dataclass(frozen=True)
class Filled:
    """
    Contenders that share a study; there is one study for each number of entries.

    Attributes:
        load: Loads a study into a database, given the database's URL and the number of entries.
        build: See `Plan.build`; it also receives the database's `url` and the contenders' `names`.
        makes_trials: The contenders that make their trials themselves. For each other contender,
            RUNNING trials are made before each slice.
    """

    contenders: Sequence[str]
    load: Callable[[str, int], None]
    build: Callable[..., Mapping[str, Step]]
    unit: str = "decisions/s"
    makes_trials: Sequence[str] = ()


@click.command()
@options.turns(processes=(16,), rounds=7, seconds=1.0)
@click.option(
    "--scheduler",
    type=click.Choice(SCHEDULERS),
    default="stopping",
    help="The scheduler: ASHA by stopping or promotion, the median rule, or HyperBand.",
)
@click.option(
    "--entries",
    type=click.IntRange(10),
    multiple=True,
    default=(1_000_000,),
    help="Entries of the rung at the start; these entries and their trials are made by SQL. May be "
    "given several times, to compare the speed at each size with the speed at the first size.",
)
def decide(*, scheduler: str, entries: Sequence[int], turns: options.Turns) -> None:
    """
    Decisions per second at one rung, on PostgreSQL.

    "stopping": studydb is compared with four raw calls after BEGIN: three statements and COMMIT.
    The first statement locks the rung; the second locks the trial under its fence, and reads the
    entries next to the rung's cut; the third writes result, entry, rung and trial.

    "promotion": a report that pauses its trial, and a worker's whole turn. In a turn, the worker
    reports, saves, ends the attempt, and gets the next trial, which is promoted or new.

    "median": reports that are all judged (interval=1), and reports of which one in ten is judged
    (interval=10), in reports per second.

    "hyperband": a rung closes while workers report and get trials in other brackets. The rung has
    as many members as the largest --entries. The table shows how long the workers' calls took in
    the --seconds before the rung could close, and from that moment until the rung's last trial was
    given up.
    """
    sizes = list(dict.fromkeys(entries))
    with places.postgresql_server(fsync=turns.fsync) as server:
        conditions = {"scheduler": scheduler, "entries": _told(sizes), **places.conditions(server)}
        if scheduler == "hyperband":
            workers = {"workers": max(turns.processes)}
            found = closing.measure(server, turns, members=max(sizes))
            closing.show(found, conditions | workers, as_json=turns.as_json)
            return
        with ExitStack() as stack:
            contest = CONTESTS[scheduler](stack, server, sizes, turns)
            outcome = measure(contest, turns, conditions)
    show(outcome, as_json=turns.as_json)


def _told(sizes: Sequence[int]) -> int | str:
    return sizes[0] if len(sizes) == 1 else " ".join(f"{size:,}" for size in sizes)


def _named(name: str, size: int, sizes: Sequence[int]) -> str:
    return name if len(sizes) == 1 else f"{name} at {size:,}"


def _flat(names: Sequence[str], sizes: Sequence[int]) -> dict[str, list[str]]:
    """Return the baselines: each contender is compared with itself at the first size."""
    return {
        _named(name, size, sizes): [_named(name, sizes[0], sizes)]
        for name in names
        for size in sizes[1:]
    }


def _fill(url: str | None, turns: options.Turns) -> None:
    """Make RUNNING trials for a slice; do nothing if `url` is None."""
    if url is None:
        return
    each = math.ceil(REPORTS_PER_S * max(turns.seconds, 0.5))
    running.fill(url, workers=max(turns.processes), per_worker=each)


# --- stopping


def _stopping(stack: ExitStack, server: str, sizes: Sequence[int], turns: options.Turns) -> Contest:
    plans, urls_of, ours = {}, {}, _flat([OURS], sizes)
    for size in sizes:
        urls = stack.enter_context(places.databases(server, "ours"))
        loading.load(places.with_tables(urls["ours"]), trials=size)
        urls |= {"raw": stack.enter_context(places.copy(server, urls["ours"]))}
        names = {name: _named(name, size, sizes) for name in DATABASES}
        plans[tuple(names.values())] = Plan(build, {"urls": urls, "names": names})
        urls_of |= {names[name]: urls[DATABASES[name]] for name in DATABASES}
        ours.setdefault(names[OURS], []).append(names[RAW])
    return Contest(
        unit="decisions/s", plans=plans, ours=ours, before=lambda name: _fill(urls_of[name], turns)
    )


def build(
    stack: ExitStack, *, index: int, urls: Mapping[str, str], names: Mapping[str, str]
) -> Mapping[str, Step]:
    """Return the steps: a decision by studydb's operation, and a decision by raw statements."""
    database = stack.enter_context(closing_at_end(connect(urls["ours"], connections=1)))
    study = load(database, STUDY)
    ours, theirs = (stack.enter_context(raw.connect(urls[name])) for name in ("ours", "raw"))
    our_leases = running.Leases(ours, worker_id=index + 1)
    raw_leases = running.Leases(theirs, worker_id=index + 1)

    def decide_raw() -> int:
        lease = raw_leases.take()
        with theirs.transaction():
            _decide_raw(theirs, lease, _value())
        return 1

    return {
        names[OURS]: lambda: _report(database, study, our_leases.take()),
        names[RAW]: decide_raw,
    }


def _report(database: Database, study: Study, lease: Lease, step: int = loading.MILESTONE) -> int:
    result = Result(step, _value(), {}, 1.0)
    report(database, study, lease=lease, batch=Batch(1, (result,), 0, Summary()))
    return 1


# --- promotion, and the median


PROMOTION = studydb.ASHA(
    max_t=REPORTS, grace_period=loading.MILESTONE, reduction_factor=3, type="promotion"
)
REPORT, TURN = "report", "turn"

INTERVAL = 10
ALL, ONE_IN_TEN = "interval=1", f"interval={INTERVAL}"


def _promotion(
    stack: ExitStack, server: str, sizes: Sequence[int], turns: options.Turns
) -> Contest:
    rungs = [RungKey(0, loading.MILESTONE)]

    def fill(url: str, size: int) -> None:
        waiting = size - size // 3  # a third of the trials was promoted
        rung_filling.load(url, PROMOTION, trials=size, waiting=waiting, rungs=rungs)

    filled = Filled((REPORT, TURN), fill, build_promotion, makes_trials=(TURN,))
    return _contest(stack, server, sizes, turns, filled)


def build_promotion(
    stack: ExitStack, *, index: int, url: str, names: Mapping[str, str]
) -> Mapping[str, Step]:
    """Return what is measured: a report that pauses its trial, and `RungWorker.turn`."""
    database = stack.enter_context(closing_at_end(connect(url, connections=1)))
    study = load(database, STUDY)
    leases = running.Leases(stack.enter_context(raw.connect(url)), worker_id=index + 1)
    worker = RungWorker(url)
    stack.callback(worker.close)
    return {
        names[REPORT]: lambda: _report(database, study, leases.take()),
        names[TURN]: worker.turn,
    }


def _median(stack: ExitStack, server: str, sizes: Sequence[int], turns: options.Turns) -> Contest:
    rungs = [RungKey(0, step) for step in (loading.MILESTONE, INTERVAL)]

    def fill(url: str, size: int) -> None:
        scheduler = studydb.MedianStopping()
        rung_filling.load(url, scheduler, trials=size, waiting=0, rungs=rungs)

    filled = Filled((ALL, ONE_IN_TEN), fill, build_median, unit="reports/s")
    return _contest(stack, server, sizes, turns, filled)


def build_median(
    stack: ExitStack, *, index: int, url: str, names: Mapping[str, str]
) -> Mapping[str, Step]:
    """Return the steps: a report that is judged, and ten reports of which the last is judged."""
    database = stack.enter_context(closing_at_end(connect(url, connections=1)))
    study = load(database, STUDY)
    rarely = replace(study, scheduler=studydb.MedianStopping(interval=INTERVAL))
    leases = running.Leases(stack.enter_context(raw.connect(url)), worker_id=index + 1)

    def report_ten() -> int:
        for number in range(1, INTERVAL + 1):
            step = INTERVAL if number == INTERVAL else loading.MILESTONE
            _report(database, rarely, leases.take(), step)
        return INTERVAL

    return {
        names[ALL]: lambda: _report(database, study, leases.take()),
        names[ONE_IN_TEN]: report_ten,
    }


def _contest(
    stack: ExitStack, server: str, sizes: Sequence[int], turns: options.Turns, filled: Filled
) -> Contest:
    plans, urls_of = {}, {}
    for size in sizes:
        urls = stack.enter_context(places.databases(server, "ours"))
        url = places.with_tables(urls["ours"])
        filled.load(url, size)
        names = {name: _named(name, size, sizes) for name in filled.contenders}
        plans[tuple(names.values())] = Plan(filled.build, {"url": url, "names": names})
        urls_of |= {
            names[name]: url for name in filled.contenders if name not in filled.makes_trials
        }
        click.echo(f"Loaded {size:,} trials.", err=True)
    return Contest(
        unit=filled.unit,
        plans=plans,
        ours=_flat(filled.contenders, sizes),
        before=lambda name: _fill(urls_of.get(name), turns),
    )


CONTESTS = {"stopping": _stopping, "promotion": _promotion, "median": _median}


def _value() -> float:
    """A value between the best and the worst of the loaded trials."""
    return random.uniform(*loading.VALUES)


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
