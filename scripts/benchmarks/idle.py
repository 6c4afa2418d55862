"""How soon idle workers notice a trial or a pause, and what they cost the database meanwhile."""

import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from fleet.workers import Fleet, eventually
from harness import postgres

import studydb
from benchmarks import idle_workers, options, output, places
from benchmarks.space import METRIC, STUDY

SCRIPTS = Path(__file__).parents[1]
SPARE_CONNECTIONS = 20
NOTICE_TIMEOUT_S = 60.0
SPREAD_S = 2.0
ENQUEUES_PER_PAUSE = 8
"""How many trials are enqueued for each time that the study is paused and resumed."""

NS, MS, PERCENT, MINUTE_S = 1e9, 1e3, 100, 60.0

CLAIMED = """
    SELECT extract(epoch FROM started_at - created_at)::float8 FROM trial
    WHERE origin = 'enqueued' AND started_at IS NOT NULL ORDER BY number"""

BEGUN = """
    SELECT extract(epoch FROM a.started_at - t.created_at)::float8 + a.start_s
    FROM trial t JOIN attempt a ON a.trial_id = t.id
    WHERE origin = 'enqueued' ORDER BY number"""

ENDED = "SELECT count(*) FROM trial WHERE state = 'TERMINATED'"

BACKENDS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'"""


@dataclass(frozen=True)
class Plan:
    """The command's options for the times and the number of rounds."""

    settle_s: float
    seconds: float
    rest_s: float
    rounds: int

    def rest(self) -> None:
        """
        Sleep for `rest_s`, and for a random time up to two seconds.

        The random time spreads enqueues and pauses over the interval between two looks of a worker.
        """
        time.sleep(self.rest_s + random.uniform(0, SPREAD_S))


@dataclass(frozen=True)
class Found:
    """
    What was measured with one number of idle workers.

    Attributes:
        claimed_s: From each enqueue to the claim of its trial.
        noticed_s: From each pause or resumption to the moment at which a worker notices it; one
            time for each worker.
        claiming: Statements that all workers sent in claims and asks, per enqueued trial.
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
@click.option(
    "--rest",
    "rest_s",
    type=click.FloatRange(0, 600),
    default=4.0,
    help="At least this many seconds pass before an enqueue, pause or resumption. Workers look "
    "more often after they have claimed a trial, so with a smaller value they notice sooner.",
)
@options.number_of_rounds(40, "Enqueued trials; the study is paused once for every 8 of them.")
@options.fsync
@options.as_json
def idle(
    *,
    workers: Sequence[int],
    settle_s: float,
    seconds: float,
    rest_s: float,
    rounds: int,
    fsync: bool,
    as_json: bool,
) -> None:
    """
    How soon idle workers of one study notice a trial or a pause, and what they cost PostgreSQL.

    Hundreds of worker processes do not fit on a machine. So two threads with one connection stand
    for each idle worker: the loop of a worker's slot, and the heartbeat. The time from an enqueue
    to the first line of the function is also measured, with one real `studydb worker --wait`.
    """
    with ExitStack() as stack:
        server = stack.enter_context(
            places.postgresql_server(fsync=fsync, connections=max(workers) + SPARE_CONNECTIONS)
        )
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        plan = Plan(settle_s, seconds, rest_s, rounds)
        found = {n: _measure(server, n, plan) for n in workers}
        real_s = _real(server, folder, plan)
        conditions = {"rounds": rounds, "seconds": seconds, **places.conditions(server)}
    _show(found, real_s, conditions, as_json=as_json)


def _create(url: str, trainable: str | None) -> studydb.Study:
    """Create a study whose searcher makes one trial; all further trials are enqueued."""
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


def _measure(server: str, n: int, plan: Plan) -> Found:
    with (
        places.databases(server, "ours") as urls,
        closing(_create(urls["ours"], None)) as study,
        idle_workers.idle_workers(urls["ours"], n) as counters,
        postgres.connect(urls["ours"]) as looking,
    ):
        statements, cpu_ms = _load(counters, looking, plan)
        claiming = sum(counters.claiming)
        for number in range(1, plan.rounds + 1):
            plan.rest()
            study.enqueue({})
            _await_ended(looking, 1 + number)
        return Found(
            claimed_s=[row[0] for row in looking.execute(CLAIMED)],
            noticed_s=_noticed_s(study, counters, plan),
            claiming=(sum(counters.claiming) - claiming) / plan.rounds,
            statements=statements,
            cpu_ms=cpu_ms,
        )


def _load(counters: idle_workers.Counters, looking: Any, plan: Plan) -> tuple[float, float | None]:
    """Statements, and milliseconds of the server's CPU, per idle worker and minute."""
    time.sleep(plan.settle_s)
    sent, used_s = sum(counters.statements), _cpu_s(looking)
    time.sleep(plan.seconds)
    minutes = len(counters.statements) * plan.seconds / MINUTE_S
    cpu_s = _cpu_s(looking)
    cpu_ms = None if cpu_s is None or used_s is None else (cpu_s - used_s) * MS / minutes
    return (sum(counters.statements) - sent) / minutes, cpu_ms


def _cpu_s(looking: Any) -> float | None:
    """CPU seconds of the database's backends; None if one is not in this host's /proc."""
    with suppress(FileNotFoundError):
        used = [Path(f"/proc/{pid}/schedstat").read_text() for (pid,) in looking.execute(BACKENDS)]
        return sum(int(text.split()[0]) for text in used) / NS
    return None


def _await_ended(looking: Any, n: int) -> None:
    eventually(
        lambda: looking.execute(ENDED).fetchone()[0] >= n,
        NOTICE_TIMEOUT_S,
        what="the end of an enqueued trial",
    )


def _noticed_s(study: studydb.Study, counters: idle_workers.Counters, plan: Plan) -> list[float]:
    found: list[float] = []
    for _ in range(max(1, plan.rounds // ENQUEUES_PER_PAUSE)):
        for is_paused, request in ((True, study.pause), (False, study.resume)):
            plan.rest()
            request()
            began_s = time.monotonic()
            idle_workers.await_all(counters, is_paused=is_paused, timeout_s=NOTICE_TIMEOUT_S)
            found += [max(0.0, at_s - began_s) for at_s in counters.noticed_s]
    return found


def _real(server: str, folder: Path, plan: Plan) -> list[float]:
    """Seconds from each enqueue to the first line of the function, with one real worker."""
    with (
        places.databases(server, "ours") as urls,
        closing(_create(urls["ours"], "benchmarks.noop:train")) as study,
        Fleet(urls["ours"], STUDY, folder) as fleet,
        postgres.connect(urls["ours"]) as looking,
    ):
        fleet.start(slots=1, wait=True)
        for number in range(1, plan.rounds + 1):
            _await_ended(looking, number)
            plan.rest()
            study.enqueue({})
        _await_ended(looking, 1 + plan.rounds)
        return [row[0] for row in looking.execute(BEGUN)]


def _show(
    found: Mapping[int, Found],
    real_s: Sequence[float],
    conditions: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    rows = {n: _figures(one) for n, one in found.items()}
    real = {f"enqueue to first line, {name}": value for name, value in _quantiles(real_s).items()}
    if as_json:
        output.show_json({"conditions": dict(conditions), "workers": rows, "real worker": real})
        return
    table = output.table("", *(f"{n} idle" for n in rows))
    for name in next(iter(rows.values())):
        table.add_row(name, *(_cell(row[name]) for row in rows.values()))
    of_real = output.table("", "1 real worker")
    for name, value in real.items():
        of_real.add_row(name, _cell(value))
    output.show_tables(table, of_real, note="", conditions=conditions)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _figures(found: Found) -> dict[str, float | None]:
    claimed, noticed = _quantiles(found.claimed_s), _quantiles(found.noticed_s)
    return {
        **{f"enqueue to claim, {name}": value for name, value in claimed.items()},
        **{f"pause to notice, {name}": value for name, value in noticed.items()},
        "statements to claim a trial": found.claiming,
        "statements a minute": found.statements,
        "server CPU a minute, ms": found.cpu_ms,
    }


def _quantiles(times_s: Sequence[float]) -> dict[str, float]:
    cuts = [*times_s] * PERCENT
    if len(times_s) > 1:
        cuts = statistics.quantiles(times_s, n=PERCENT, method="inclusive")
    return {"median, s": statistics.median(times_s), "p99, s": cuts[-1], "most, s": max(times_s)}
