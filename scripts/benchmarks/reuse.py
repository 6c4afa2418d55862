"""Trials per second of a class whose process runs several trials, compared with new processes."""

import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from fleet.workers import Fleet

from benchmarks import attempt_starts, options, ours, output, places
from benchmarks.rounds import in_turn
from benchmarks.space import STUDY

SCRIPTS = Path(__file__).parents[1]
RUN_TIMEOUT_S = 300.0

LEAST_RATIO = 2.0
"""The least ratio that passes: the trials/s of reused processes divided by those of warm starts."""


@dataclass(frozen=True)
class Contender:
    """
    A way to start attempts.

    Attributes:
        trainable: The name of a class in `benchmarks.resettable`.
        start: The worker's `--start`.
        started: The value of `attempt.start` in the attempts that are counted.
    """

    trainable: str
    start: str
    started: str


CONTENDERS = {
    "reused processes": Contender("Reused", "auto", "reused"),
    "warm starts": Contender("New", "auto", "warm"),
    "fresh starts": Contender("New", "fresh", "fresh"),
}


@click.command()
@click.option("--trials", type=click.IntRange(10), default=300, help="Trials per run of a worker.")
@click.option("--slots", type=click.IntRange(1, 64), default=1, help="Trials at a time.")
@options.number_of_rounds(5, "Runs of each contender.")
@options.fsync
@options.as_json
def reuse(*, trials: int, slots: int, rounds: int, fsync: bool, as_json: bool) -> None:
    """
    Trials per second of a worker on PostgreSQL; each trial only makes one report.

    The contenders are reused processes (of a class whose `reset_config` returns True), and warm
    and fresh starts (of a class without `reset_config`). The exit code is 1 if reused processes
    make fewer than twice as many trials per second as warm starts.
    """
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=fsync))
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        names = {contender.trainable for contender in CONTENDERS.values()}
        urls = stack.enter_context(places.databases(server, *names))
        fleets = {}
        for name in names:
            trainable = f"benchmarks.resettable:{name}"
            ours.create(places.with_tables(urls[name]), trainable, workdir=SCRIPTS)
            fleets[name] = stack.enter_context(Fleet(urls[name], STUDY, _made(folder / name)))
        rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for number in range(rounds):
            for name in in_turn(list(CONTENDERS), number):
                fleet = fleets[CONTENDERS[name].trainable]
                rates[name].append(_rate(fleet, CONTENDERS[name], trials=trials, slots=slots))
        conditions = {"slots": slots, "trials": trials, "rounds": rounds}
        conditions |= places.conditions(server)
    ratios = _ratios(rates)
    _show(rates, ratios, conditions, as_json=as_json)
    if ratios["warm starts"] < LEAST_RATIO:
        raise click.exceptions.Exit(1)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _rate(fleet: Fleet, contender: Contender, *, trials: int, slots: int) -> float:
    """Run a worker; return the trials per second of its attempts with the contender's start."""
    worker = fleet.start(start=contender.start, slots=slots, max_trials=trials)
    assert worker.exit_code(RUN_TIMEOUT_S) == 0, worker.output()
    return attempt_starts.trials_per_s(fleet, start=contender.started, slots=slots)


def _ratios(rates: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of reused processes, divided by the median of each other contender."""
    reused, *others = rates
    median = statistics.median(rates[reused])
    return {name: median / statistics.median(rates[name]) for name in others}


def _show(
    rates: Mapping[str, list[float]],
    ratios: Mapping[str, float],
    conditions: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    if as_json:
        document = {"conditions": dict(conditions), "trials_per_s": rates, "ratio": ratios}
        output.show_json(document)
        return
    table = output.table("", "trials/s", "runs", "reused /")
    for name, runs in rates.items():
        ratio = f"{ratios[name]:.2f} x" if name in ratios else ""
        span = f"{min(runs):.1f} to {max(runs):.1f}"
        table.add_row(name, f"{statistics.median(runs):.1f}", span, ratio)
    note = "Medians of runs that took turns."
    output.show_tables(table, note=note, conditions=conditions)
