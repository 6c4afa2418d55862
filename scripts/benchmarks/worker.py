"""Trials per second of a worker, memory of an idle worker, and CPU time of commands."""

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from fleet.workers import Fleet, eventually

import studydb
from benchmarks import attempt_starts, cli_usage, options, ours, output, places, raw
from benchmarks.programs import Program, compare_programs
from benchmarks.space import STUDY
from benchmarks.teams import Plan, Step, Team

WORKERS = {"fresh": "studydb worker, fresh starts", "auto": "studydb worker, warm starts"}
"""The name of the contender for each value of the worker's option `--start`."""

STARTED = {"fresh": "fresh", "auto": "warm"}
FORKING = "raw, a fork and 2 calls a trial"
COMMANDS = {"--help": ("--help",), "status": ("status", STUDY)}

SCRIPTS = Path(__file__).parents[1]
"""The folder in which workers find `benchmarks.noop`."""

RUN_TIMEOUT_S = 300.0
SETTLED_S = 3.0
"""A worker has started all its threads after this time."""

MB = 1e6


@dataclass(frozen=True)
class Found:
    """The measurement: rates in trials per second, memory in MB, CPU in seconds."""

    rates: Mapping[str, list[float]]
    idle_mb: Mapping[str, float]
    cpu_s: Mapping[str, list[float]]
    conditions: Mapping[str, Any]


@click.command()
@click.option("--trials", type=click.IntRange(2), default=300, help="Trials per run of the worker.")
@click.option("--slots", type=click.IntRange(1, 64), default=2, help="Trials at a time.")
@options.number_of_rounds(5, "Runs of each contender and command.")
@options.fsync
@options.as_json
@options.against
def worker(
    *, trials: int, slots: int, rounds: int, fsync: bool, as_json: bool, commit: str | None
) -> None:
    """
    A real worker on PostgreSQL, with trials that only make ten reports.

    Fresh and warm starts are compared with one raw process per slot, which forks for each trial and
    writes the trial's rows in two statements. Then the benchmark measures the memory (PSS) of an
    idle worker with one slot and of its fork server, and the CPU time of commands. The CPU time of
    `studydb report` is compared with that of an interpreter that does nothing.
    """
    if commit is not None:
        arguments = ("worker", "--rounds", "1", "--trials", str(trials), "--slots", str(slots))
        compare_programs(Program("trials/s", arguments, _medians, slots), commit, as_json=as_json)
        return
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=fsync))
        urls = stack.enter_context(places.databases(server, "ours", "raw"))
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        ours.create(places.with_tables(urls["ours"]), "benchmarks.noop:train", workdir=SCRIPTS)
        ours.create(places.with_tables(urls["raw"]))
        fleet = stack.enter_context(Fleet(urls["ours"], STUDY, folder))
        found = Found(
            rates=_rates(fleet, urls, trials=trials, slots=slots, rounds=rounds),
            idle_mb=_idle_mb(fleet),
            cpu_s=_cpu_s(urls["ours"], rounds) | cli_usage.cpu_of_reports_s(4 * rounds),
            conditions={"slots": slots, "trials": trials, **places.conditions(server)},
        )
    _show(found, as_json=as_json)


def _medians(document: Any) -> dict[str, float]:
    medians: Mapping[str, float] = document["trials_per_s"]["median"]
    return {name: medians[name] for name in WORKERS.values()}


def _rates(
    fleet: Fleet, urls: Mapping[str, str], *, trials: int, slots: int, rounds: int
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in (*WORKERS.values(), FORKING)}
    with Team(Plan(build, {"url": urls["raw"]}), slots) as team:
        team.ready()
        for _ in range(rounds):
            for start, name in WORKERS.items():
                worker = fleet.start(start=start, slots=slots, max_trials=trials)
                assert worker.exit_code(RUN_TIMEOUT_S) == 0, worker.output()
                rate = attempt_starts.trials_per_s(fleet, start=STARTED[start], slots=slots)
                rates[name].append(rate)
            rates[FORKING].append(team.run(FORKING, 1.0))
    return rates


def build(stack: ExitStack, *, index: int, url: str) -> Mapping[str, Step]:
    steps = raw.build(stack, index=index, url=url)

    def fork_and_run() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return steps[raw.TWO_STATEMENTS_PER_TRIAL]()

    return {FORKING: fork_and_run}


def _idle_mb(fleet: Fleet) -> dict[str, float]:
    """PSS in MB of each process of a worker whose study is paused."""
    with closing(studydb.load_study(STUDY, storage=fleet.storage)) as study:
        study.pause()
        idle = fleet.start(slots=1, wait=True)
        eventually(lambda: "works on" in idle.output(), what="the start of a worker")
        time.sleep(SETTLED_S)
        processes = idle.family()
        memory = {
            "supervisor" if one.pid == idle.pid else "fork server": one.memory_full_info().pss / MB
            for one in processes
        }
        idle.end()
        study.resume()
    return memory


def _cpu_s(url: str, rounds: int) -> dict[str, list[float]]:
    """User plus system time of each command in seconds; a command's first call is not measured."""
    for arguments in COMMANDS.values():
        _run(url, arguments)
    return {
        f"studydb {name}": [_run(url, arguments) for _ in range(rounds)]
        for name, arguments in COMMANDS.items()
    }


def _run(url: str, arguments: tuple[str, ...]) -> float:
    used = cli_usage.run(url, *arguments)
    return cli_usage.cpu_s(used)


def _show(found: Found, *, as_json: bool) -> None:
    rates = {name: statistics.median(runs) for name, runs in found.rates.items()}
    cpu_s = {name: statistics.median(runs) for name, runs in found.cpu_s.items()}
    total_mb = sum(found.idle_mb.values())
    if as_json:
        document = {
            "conditions": dict(found.conditions),
            "trials_per_s": {"median": rates, "runs": found.rates},
            "ratio": {name: rates[name] / rates[FORKING] for name in WORKERS.values()},
            "idle_pss_mb": {**found.idle_mb, "all": total_mb},
            "cpu_s": {"median": cpu_s, "runs": found.cpu_s},
        }
        output.show_json(document)
        return
    table = output.table("", "")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:.1f} trials/s")
    for name, mb in {**found.idle_mb, "all": total_mb}.items():
        table.add_row(f"idle, PSS: {name}", f"{mb:.1f} MB")
    for name, seconds in cpu_s.items():
        table.add_row(f"{name}, CPU", f"{1000 * seconds:.0f} ms")
    note = "Medians of runs; the runs of the workers and of the raw processes took turns."
    output.show_tables(table, note=note, conditions=found.conditions)
