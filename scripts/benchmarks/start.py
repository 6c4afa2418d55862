"""Warm and fresh starts of attempts, from the claim to the first line of the user's function."""

import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from fleet.workers import Fleet
from harness import postgres

from benchmarks import options, ours, output, places
from benchmarks.programs import Program, compare_programs
from benchmarks.space import STUDY

SCRIPTS = Path(__file__).parents[1]
RUN_TIMEOUT_S = 300.0
MODES = ("auto", "fresh")

STARTS = """
    SELECT a.start, r.metrics ->> 'called_s', extract(epoch FROM a.started_at)
    FROM attempt a JOIN result r USING (trial_id, attempt)
    WHERE a.worker_id = (SELECT max(id) FROM worker) ORDER BY a.started_at"""


@click.command()
@click.option("--trials", type=click.IntRange(2), default=30, help="Trials per run of the worker.")
@options.number_of_rounds(3, "Runs of the worker with each `--start`.")
@options.as_json
@options.against
def start(*, trials: int, rounds: int, as_json: bool, commit: str | None) -> None:
    """
    Time from the claim to the first line of the user's function, whose module imports scikit-learn.

    The worker has one slot, and works on PostgreSQL. The first start of each run is shown
    separately, because with `--start auto` its time includes the making of the template.
    """
    if commit is not None:
        arguments = ("start", "--rounds", "1", "--trials", str(trials))
        compare_programs(Program("starts/s", arguments, _rates, 1), commit, as_json=as_json)
        return
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=True))
        urls = stack.enter_context(places.databases(server, "ours"))
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        ours.create(places.with_tables(urls["ours"]), "benchmarks.imports:train", workdir=SCRIPTS)
        fleet = stack.enter_context(Fleet(urls["ours"], STUDY, folder))
        starts: dict[str, list[float]] = {mode: [] for mode in MODES}
        first: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(rounds):
            for mode in MODES:
                worker = fleet.start(start=mode, max_trials=trials)
                assert worker.exit_code(RUN_TIMEOUT_S) == 0, worker.output()
                found = _starts(urls["ours"], mode, fleet)
                first[mode].append(found[0])
                starts[mode] += found[1:]
        conditions = {"trials": trials, "rounds": rounds, **places.conditions(server)}
    _show(starts, first, conditions, as_json=as_json)


def _rates(document: Any) -> dict[str, float]:
    return {mode: 1 / statistics.median(each) for mode, each in document["starts"].items()}


def _starts(url: str, mode: str, fleet: Fleet) -> list[float]:
    """Return how many seconds each start of the last worker took, in order."""
    with postgres.connect(url) as connection:
        rows = connection.execute(STARTS).fetchall()
    how = {row[0] for row in rows}
    if how != {"warm" if mode == "auto" else "fresh"}:
        raise RuntimeError(f"With --start {mode}, attempts had the starts {how}.\n{fleet.output()}")
    return [float(called_s) - float(claimed_s) for _, called_s, claimed_s in rows]


def _show(
    starts: Mapping[str, list[float]],
    first: Mapping[str, list[float]],
    conditions: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    if as_json:
        output.show_json({"conditions": conditions, "starts": starts, "first": first})
        return
    table = output.table("--start", "median", "90 %", "the first of a worker")
    for mode, seconds in starts.items():
        figures = (
            statistics.median(seconds),
            statistics.quantiles(seconds, n=10, method="inclusive")[-1],
            statistics.median(first[mode]),
        )
        table.add_row(mode, *(f"{1000 * figure:.1f} ms" for figure in figures))
    note = "From the claim to the function's first line."
    output.show_tables(table, note=note, conditions=conditions)
