"""Hundreds of worker loops on one database."""

import multiprocessing
import random
import signal
import statistics
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import click
import numpy.random  # noqa: F401  searchers need this module: it is imported once, before the forks
from harness import postgres

from benchmarks import options, ours, output, places, waiting
from benchmarks.client import PER_PROCESS, Client
from benchmarks.space import REPORTS, loss
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch, Claim
from studydb.domain.tally import Tally
from studydb.operations.finish import finish
from studydb.operations.report import report

SPARE_CONNECTIONS = 20
SAMPLE_S = 0.5
GRACE_S = 60.0
START_TIMEOUT_S = 300.0
START_SPREAD = 0.1
"""Loops start at random times within this first share of the run, so that their calls spread."""

PERCENT = 100
MS = 1e3

CONNECTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'"""

WRONG_ROWS = """
    SELECT (SELECT count(*) FROM attempt WHERE attempt > 1),
        (SELECT count(*) FROM trial WHERE state <> 'PENDING' AND attempt <> 1),
        (SELECT sum(terminated) FROM counter)
            - (SELECT count(*) FROM trial WHERE state = 'TERMINATED')"""

_FORK = multiprocessing.get_context("fork")
"""A forked process has the modules of this process; a spawned process would import them again."""

Took = dict[str, list[float]]


@dataclass(frozen=True)
class Found:
    """The measurement: seconds per call by operation, errors, and the peak of open connections."""

    took_s: Mapping[str, Sequence[float]]
    errors: Counter[str]
    connections: int
    seconds: float
    conditions: Mapping[str, Any]


@click.command()
@click.option("--loops", type=click.IntRange(1, 2000), default=300, help="How many loops.")
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=60.0, help="Duration.")
@click.option(
    "--waiting", "n_waiting", type=click.IntRange(0), default=50_000, help="Trials in the queue."
)
@click.option(
    "--rest",
    "rest_s",
    type=click.FloatRange(0, 3600),
    default=0.0,
    help="Mean seconds that a loop sleeps after a claim; with 0, the loops compete for the CPU.",
)
@options.fsync
@options.as_json
def loops(
    *, loops: int, seconds: float, n_waiting: int, rest_s: float, fsync: bool, as_json: bool
) -> None:
    """
    Latencies of hundreds of worker loops on one PostgreSQL.

    Each loop is a thread with one connection: it claims a PENDING trial or asks for a new one,
    reports a batch, and finishes with a second batch. Before the measurement each loop claims and
    asks once, because PostgreSQL needs seconds to plan the statements of all connections. Errors
    are counted, and a failed report or finish is not sent again. The exit code is 1 if there is an
    error, if a trial that was started does not have exactly one attempt, or if the counter of
    TERMINATED trials is wrong.
    """
    with (
        places.postgresql_server(fsync=fsync, connections=loops + SPARE_CONNECTIONS) as server,
        places.databases(server, "ours") as urls,
    ):
        url = urls["ours"]
        ours.create(places.with_tables(url))
        waiting.fill(url, n_waiting)
        found = _run(
            url,
            loops,
            seconds,
            rest_s,
            {"loops": loops, "rest_s": rest_s, **places.conditions(server)},
        )
        with postgres.connect(url) as connection:
            wrong = connection.execute(WRONG_ROWS).fetchone() or ()
    found.errors.update({"rows that do not add up": int(sum(map(abs, wrong)))})
    _show(found, as_json=as_json)
    if +found.errors:
        raise SystemExit(1)


def _run(url: str, n: int, seconds: float, rest_s: float, conditions: Mapping[str, Any]) -> Found:
    took: Took = defaultdict(list)
    errors: Counter[str] = Counter()
    with _processes(n, url, seconds, rest_s) as pipes, postgres.connect(url) as looking:
        for pipe in pipes:
            if not pipe.poll(START_TIMEOUT_S) or pipe.recv() != "ready":
                raise RuntimeError(f"Not all loops started within {START_TIMEOUT_S:g} s.")
        for pipe in pipes:
            pipe.send("go")
        most, deadline_s = 0, time.monotonic() + seconds + GRACE_S
        awaited = list(pipes)
        while awaited and time.monotonic() < deadline_s:
            most = max(most, _count(looking))
            for pipe in wait(awaited, SAMPLE_S):
                assert isinstance(pipe, Connection)
                awaited.remove(pipe)
                _add(pipe, took, errors)
        errors["processes of loops that did not end"] += len(awaited)
    return Found(took, errors, most, seconds, conditions)


@contextmanager
def _processes(n: int, url: str, seconds: float, rest_s: float) -> Iterator[list[Connection]]:
    pipes, processes = [], []
    try:
        for first in range(0, n, PER_PROCESS):
            ours_end, theirs = _FORK.Pipe()
            several = min(PER_PROCESS, n - first)
            process = _FORK.Process(
                target=_several_loops, args=(theirs, several, url, seconds, rest_s), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours_end)
            processes.append(process)
        yield pipes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _count(looking: Any) -> int:
    (n,) = looking.execute(CONNECTIONS).fetchone()
    return int(n)


def _add(pipe: Connection, took: Took, errors: Counter[str]) -> None:
    try:
        more, wrong = pipe.recv()
    except (EOFError, OSError):
        errors["processes of loops that died"] += 1
        return
    for name, times in more.items():
        took[name].extend(times)
    errors.update(wrong)


def _several_loops(pipe: Connection, n: int, url: str, seconds: float, rest_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leading process handles Ctrl-C
    took: Took = defaultdict(list)
    errors: Counter[str] = Counter()
    clients = [Client(url) for _ in range(n)]
    for client in clients:
        _run_trial(client, defaultdict(list), rest_s=0.0)
        client.finish(client.ask())
    pipe.send("ready")
    pipe.recv()
    with ThreadPoolExecutor(n) as threads:
        list(threads.map(partial(_loop, seconds, rest_s, took, errors), clients))
    with suppress(OSError):
        pipe.send((dict(took), errors))


def _loop(seconds: float, rest_s: float, took: Took, errors: Counter[str], client: Client) -> None:
    deadline = time.monotonic() + seconds
    time.sleep(random.uniform(0, seconds * START_SPREAD))
    while time.monotonic() < deadline:
        try:
            _run_trial(client, took, rest_s)
        except Exception as error:  # noqa: BLE001  every error is counted
            errors[traceback.format_exception_only(error)[-1].strip()] += 1


def _run_trial(client: Client, took: Took, rest_s: float) -> None:
    began_s = time.perf_counter()
    claim = client.acquirer.acquire()
    took["claim or ask"].append(time.perf_counter() - began_s)
    if claim is None:
        raise RuntimeError("A study without a budget gave no trial.")
    half = REPORTS // 2
    batch = Batch(1, _results(claim, 1, half), 0, Summary())
    time.sleep(random.uniform(0, 2 * rest_s))
    began_s = time.perf_counter()
    answer = report(client.database, client.study, lease=claim.lease, batch=batch)
    took["report"].append(time.perf_counter() - began_s)
    tally = Tally(client.study.objective.metric).add(batch.results)
    batch = Batch(2, _results(claim, half + 1, REPORTS), half, answer.summary)
    began_s = time.perf_counter()
    finish(
        client.database,
        client.study,
        lease=claim.lease,
        outcome=Reason.COMPLETED,
        batch=batch,
        tally=tally,
    )
    took["finish"].append(time.perf_counter() - began_s)


def _results(claim: Claim, first: int, last: int) -> tuple[Result, ...]:
    momentum = claim.params["momentum"]
    return tuple(
        Result(step, loss(momentum, step), {}, 0.25 * step) for step in range(first, last + 1)
    )


def _show(found: Found, *, as_json: bool) -> None:
    latencies = {name: _latencies(times) for name, times in found.took_s.items()}
    if as_json:
        document = {
            "conditions": dict(found.conditions),
            "latency_ms": latencies,
            "trials_per_s": len(found.took_s.get("finish", ())) / found.seconds,
            "connections": found.connections,
            "errors": dict(+found.errors),
        }
        output.show_json(document)
        return
    table = output.table("ms", "calls", "median", "p99", "most")
    for name, row in latencies.items():
        cells = (row["calls"], row["median"], row["p99"], row["most"])
        table.add_row(name, *(f"{cell:,.0f}" for cell in cells))
    errors = "".join(f"{n} x {name}. " for name, n in (+found.errors).items())
    note = f"{errors}{found.connections} connections at most."
    output.show_tables(table, note=note, conditions=found.conditions)


def _latencies(times_s: Sequence[float]) -> dict[str, float]:
    cuts = (
        statistics.quantiles(times_s, n=PERCENT, method="inclusive")
        if len(times_s) > 1
        else [*times_s] * PERCENT
    )
    return {
        "calls": len(times_s),
        "median": statistics.median(times_s) * MS,
        "p99": cuts[-1] * MS,
        "most": max(times_s) * MS,
    }
