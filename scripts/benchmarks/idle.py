"""How soon idle workers notice a trial or a pause, and what they cost the database meanwhile."""

import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
from fleet.workers import Fleet, eventually
from harness import postgres

import studydb
from benchmarks import idle_workers, options, output, places
from benchmarks.space import METRIC, STUDY

SCRIPTS = Path(__file__).parents[1]
SPARE_CONNECTIONS = 20
NOTICE_TIMEOUT_S = 60.0
LONGEST_REST_S = 3.0
NS, MS, PERCENT, MINUTE_S = 1e9, 1e3, 100, 60.0

CLAIMED = """
    SELECT extract(epoch FROM started_at - created_at)::float8 FROM trial
    WHERE origin = 'enqueued' AND started_at IS NOT NULL ORDER BY number"""

ENDED = "SELECT count(*) FROM trial WHERE state = 'TERMINATED'"


@dataclass(frozen=True)
class Found:
    """
    The measurement of one number of idle workers; times are in seconds.

    Attributes:
        claimed_s: From each enqueue to the claim of its trial.
        noticed_s: From each pause or resumption to the moment at which each worker has seen it.
        claiming: Statements that claims and asks sent for each enqueued trial.
        statements: Statements per idle worker and minute.
        cpu_ms: Milliseconds of the server's CPU per idle worker and minute; None if the server runs
            on another host.
    """

    claimed_s: Sequence[float]
    noticed_s: Sequence[float]
    claiming: float
    statements: float
    cpu_ms: float | None


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    multiple=True,
    default=(1, 100, 300),
    help="How many idle workers; may be given several times.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0, 600),
    default=40.0,
    help="Seconds before the load is measured.",
)
@click.option(
    "--seconds", type=click.FloatRange(1, 3600), default=60.0, help="How long the load is measured."
)
@options.number_of_rounds(40, "Enqueued trials, and a quarter as many pauses.")
@options.fsync
@options.as_json
def idle(
    *,
    workers: Sequence[int],
    settle_s: float,
    seconds: float,
    rounds: int,
    fsync: bool,
    as_json: bool,
) -> None:
    """
    Idle workers of one study on PostgreSQL: what they notice, and what they cost.

    An idle worker is a thread with the loop of a worker's slot, its heartbeat and one connection,
    because hundreds of worker processes do not fit on a machine. One real `studydb worker --wait`
    is measured, too, from the enqueue to the first report of the trial.
    """
    with ExitStack() as stack:
        server = stack.enter_context(
            places.postgresql_server(fsync=fsync, connections=max(workers) + SPARE_CONNECTIONS)
        )
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        found = {n: _measure(server, n, settle_s, seconds, rounds) for n in workers}
        real_s = _real(server, folder, rounds)
        conditions = {"rounds": rounds, "seconds": seconds, **places.conditions(server)}
    _show(found, real_s, conditions, as_json=as_json)


def _create(url: str, trainable: str | None) -> studydb.Study:
    """A study whose searcher has one point: afterwards only enqueued trials are left to run."""
    return studydb.create_study(
        STUDY,
        trainable,
        space={"momentum": studydb.choice([0.5])},
        metric=METRIC,
        mode="min",
        searcher=studydb.GridSearch(),
        storage=places.with_tables(url),
        **({} if trainable is None else {"workdir": SCRIPTS}),
    )


def _measure(server: str, n: int, settle_s: float, seconds: float, rounds: int) -> Found:
    with (
        places.databases(server, "ours") as urls,
        closing(_create(urls["ours"], None)) as study,
        idle_workers.idle_workers(urls["ours"], n) as counters,
        postgres.connect(urls["ours"]) as looking,
    ):
        time.sleep(settle_s)
        sent, cpu_s, began_s = sum(counters.statements), _cpu_s(looking), time.monotonic()
        time.sleep(seconds)
        minutes = n * (time.monotonic() - began_s) / MINUTE_S
        used_s = None if cpu_s is None else (_cpu_s(looking) or 0.0) - cpu_s
        statements = (sum(counters.statements) - sent) / minutes
        claiming = sum(counters.claiming)
        for number in range(1, rounds + 1):
            _enqueue(study)
            _await_ended(looking, 1 + number)
            time.sleep(random.uniform(0, LONGEST_REST_S))
        return Found(
            claimed_s=[row[0] for row in looking.execute(CLAIMED)],
            noticed_s=_noticed_s(study, counters, max(1, rounds // 8)),
            claiming=(sum(counters.claiming) - claiming) / rounds,
            statements=statements,
            cpu_ms=None if used_s is None else used_s * MS / minutes,
        )


def _enqueue(study: studydb.Study) -> None:
    study.enqueue({})


def _await_ended(looking: Any, n: int) -> None:
    eventually(
        lambda: looking.execute(ENDED).fetchone()[0] >= n,
        NOTICE_TIMEOUT_S,
        what="the end of an enqueued trial",
    )


def _noticed_s(study: studydb.Study, counters: idle_workers.Counters, rounds: int) -> list[float]:
    found: list[float] = []
    for _ in range(rounds):
        for is_paused, request in ((True, study.pause), (False, study.resume)):
            time.sleep(random.uniform(0, LONGEST_REST_S))
            request()
            began_s = time.monotonic()
            idle_workers.await_all(counters, is_paused=is_paused, timeout_s=NOTICE_TIMEOUT_S)
            found += [max(0.0, at_s - began_s) for at_s in counters.noticed_s]
    return found


def _cpu_s(looking: Any) -> float | None:
    """CPU that all processes of the server have used; None if it runs on another host."""
    try:
        server = psutil.Process(looking.info.backend_pid).parent()
    except psutil.NoSuchProcess:
        return None
    if server is None:
        return None
    pids = [server.pid, *(child.pid for child in server.children())]
    used = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in pids]
    return sum(map(int, used)) / NS


def _real(server: str, folder: Path, rounds: int) -> list[float]:
    """Seconds from each enqueue to the row of the trial's last report, with one real worker."""
    with (
        places.databases(server, "ours") as urls,
        closing(_create(urls["ours"], "benchmarks.noop:train")) as study,
        Fleet(urls["ours"], STUDY, folder) as fleet,
        postgres.connect(urls["ours"]) as looking,
    ):
        fleet.start(slots=1, wait=True)
        _await_ended(looking, 1)
        for number in range(1, rounds + 1):
            time.sleep(random.uniform(0, LONGEST_REST_S))
            _enqueue(study)
            _await_ended(looking, 1 + number)
        return [row[0] for row in looking.execute(CLAIMED)]


def _show(
    found: Mapping[int, Found],
    real_s: Sequence[float],
    conditions: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    rows = {n: _figures(one) for n, one in found.items()}
    real = {f"enqueue to claim, {name}": value for name, value in _quantiles(real_s).items()}
    if as_json:
        output.show_json({"conditions": dict(conditions), "workers": rows, "real worker": real})
        return
    table = output.table("", *(f"{n} workers" for n in rows), "real worker")
    for name in next(iter(rows.values())):
        cells = [row[name] for row in rows.values()]
        table.add_row(name, *map(_cell, cells), _cell(real.get(name)))
    output.show_tables(table, note="Per worker and minute where not in s.", conditions=conditions)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _figures(found: Found) -> dict[str, float | None]:
    return {
        **{
            f"enqueue to claim, {name}": value
            for name, value in _quantiles(found.claimed_s).items()
        },
        **{
            f"pause to notice, {name}": value for name, value in _quantiles(found.noticed_s).items()
        },
        "statements of claims per enqueued trial": found.claiming,
        "statements": found.statements,
        "server CPU, ms": found.cpu_ms,
    }


def _quantiles(times_s: Sequence[float]) -> dict[str, float]:
    cuts = (
        statistics.quantiles(times_s, n=PERCENT, method="inclusive")
        if len(times_s) > 1
        else [*times_s] * PERCENT
    )
    return {"median, s": statistics.median(times_s), "p99, s": cuts[-1], "most, s": max(times_s)}
