"""A trial with a million results: the time to end it, its worker's memory, the cost of reads."""

import os
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import psutil
import sqlalchemy as sa
from fleet.workers import Fleet
from rich.console import Console

import studydb
from benchmarks import cli_usage, options, output, places
from studydb.db import Prepared
from studydb.db.schema import attempt, result, trial

SCRIPTS = Path(__file__).parents[1]
STUDY = "long"
TIMEOUT_S = 1800.0
MB = 1e6
READS = {
    "show": ("show", STUDY, "0"),
    "results --limit 50": ("results", STUDY, "0", "--limit", "50"),
}


@click.command()
@options.storage
@click.option("--steps", type=click.IntRange(1), default=1_000_000, help="Results of the trial.")
@click.option("--lost", is_flag=True, help="Kill the trial's process once, at 90 % of the steps.")
@options.as_json
def long(*, storage: str, steps: int, lost: bool, as_json: bool) -> None:
    """
    Run a trial of a million results, each with ten metrics, by a real worker.

    Measures seconds from the last report to the trial's end, the worker's peak memory (RSS), and
    seconds and memory of `show` and `results --limit 50`.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(places.folder())
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        if storage == "sqlite":
            url = f"sqlite:///{folder}/studydb.db"
        else:
            server = stack.enter_context(places.postgresql_server(fsync=True))
            url = places.with_tables(stack.enter_context(places.databases(server, STUDY))[STUDY])
        study = stack.enter_context(closing(_create(url, steps)))
        fleet = stack.enter_context(Fleet(url, STUDY, folder))
        found = _run(fleet, study, steps if lost else None)
        found |= {name: _read(url, arguments) for name, arguments in READS.items()}
    if as_json:
        output.show_json(found)
        return
    console = Console()
    for name, figure in found.items():
        console.print(f"{name:28} {figure}")


def _create(url: str, steps: int) -> studydb.Study:
    return studydb.create_study(
        STUDY,
        "benchmarks.long_trial:train",
        space={"steps": steps},
        metric="metric_0",
        mode="max",
        num_trials=1,
        workdir=SCRIPTS,
        storage=url,
    )


def _run(fleet: Fleet, study: Any, kill_before: int | None) -> dict[str, Any]:
    worker = fleet.start()
    memory = {"worker, MB": 0.0}
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(worker.pid, memory, done))
    watcher.start()
    if kill_before is not None:
        while study.trials[0].summary.n_results < kill_before * 9 // 10:
            time.sleep(0.5)
        worker.children()[0].kill()
    code = worker.exit_code(TIMEOUT_S)
    done.set()
    watcher.join()
    if code:
        raise RuntimeError(f"The worker ended with {code}.\n{worker.output()}")
    with study.database.begin(write=False) as txn:
        last = txn.all(Prepared(sa.select(sa.func.max(result.c.reported_at).label("at"))))[0].at
        row = txn.all(Prepared(sa.select(trial)))[0]
        n_attempts = len(txn.all(Prepared(sa.select(attempt.c.attempt))))
    if row.metric_summary is None:
        raise RuntimeError("The trial has no summary of its metrics.")
    return {
        "results": row.n_results,
        "attempts": n_attempts,
        "from the last report to the end": f"{(row.ended_at - last).total_seconds():.1f} s",
        "metrics in the summary": len(row.metric_summary),
        **{name: f"{figure:.0f}" for name, figure in memory.items()},
    }


def _watch(pid: int, memory: dict[str, float], done: threading.Event) -> None:
    while not done.wait(0.2):
        try:
            used = psutil.Process(pid).memory_info().rss / MB
        except psutil.Error:
            return
        memory["worker, MB"] = max(memory["worker, MB"], used)


def _read(url: str, arguments: tuple[str, ...]) -> str:
    began_s = time.perf_counter()
    used = cli_usage.run(url, *arguments)
    return f"{time.perf_counter() - began_s:.2f} s, {used.ru_maxrss / 1024:.0f} MB"
