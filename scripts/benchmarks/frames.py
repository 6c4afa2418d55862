"""Data frames of all trials and of all results of a study."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import psycopg

import studydb
from benchmarks import loading, options, optuna_side, places
from benchmarks.space import STUDY
from benchmarks.timing import MS, Timings, show

OURS, RAW, OPTUNA = "studydb", "raw fetch", "Optuna"

SELECT = {
    "trials_dataframe": "SELECT * FROM v_trial WHERE study = %s ORDER BY number",
    "results_dataframe": "SELECT * FROM v_result WHERE study = %s ORDER BY number, step",
}

_SPAWN = multiprocessing.get_context("spawn")


@click.command()
@click.option(
    "--trials", type=click.IntRange(10), default=50_000, help="Trials, each with ten results."
)
@options.number_of_rounds(5, "How many times each contender reads each data frame.")
@click.option("--with-optuna", is_flag=True, help="Also measure Optuna's trials_dataframe.")
@options.fsync
@options.as_json
def frames(*, trials: int, rounds: int, with_optuna: bool, fsync: bool, as_json: bool) -> None:
    """
    Milliseconds and peak memory of reading a data frame from PostgreSQL in a fresh process.

    The baseline fetches the rows of `v_trial` or `v_result` by psycopg. The memory is that of the
    whole process: it includes Python, the driver and, except in the baseline, pandas.
    """
    if with_optuna:
        optuna_side.require()
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=fsync))
        urls = stack.enter_context(places.databases(server, "ours", "optuna"))
        loading.load(places.with_tables(urls["ours"]), trials=trials)
        contenders = {RAW: (fetch, urls["ours"]), OURS: (frame, urls["ours"])}
        if with_optuna:
            optuna_side.fill(urls["optuna"], trials=trials)
            contenders[OPTUNA] = (optuna_side.frame, urls["optuna"])
        took, peaks = _take_turns(contenders, rounds)
        timings = Timings(
            took,
            baseline=RAW,
            conditions={"trials": trials, "peak_mb": peaks, "rounds": rounds}
            | places.conditions(server),
        )
    show(timings, as_json=as_json)


def _take_turns(
    contenders: dict[str, tuple[Callable[[str, str], float], str]], rounds: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, int]]]:
    took: dict[str, dict[str, list[float]]] = {name: {} for name in SELECT}
    peaks: dict[str, dict[str, int]] = {name: {} for name in SELECT}
    for _ in range(rounds):
        for name in SELECT:
            for contender, (read, url) in contenders.items():
                if contender == OPTUNA and name != optuna_side.FRAME:
                    continue
                took_ms, peak_mb = _read_apart(read, url, name)
                took[name].setdefault(contender, []).append(took_ms)
                peaks[name][contender] = max(peak_mb, peaks[name].get(contender, 0))
    return took, peaks


def _read_apart(read: Callable[[str, str], float], url: str, name: str) -> tuple[float, int]:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_measure, args=(theirs, read, url, name), daemon=True)
    process.start()
    theirs.close()
    try:
        took_ms, peak_mb = ours.recv()
    except EOFError:
        raise RuntimeError(f"The process that read {name} has failed.") from None
    finally:
        process.join()
    return took_ms, peak_mb


def _measure(pipe: Any, read: Callable[[str, str], float], url: str, name: str) -> None:
    took_s = read(url, name)
    pipe.send((took_s * MS, _peak_mb()))


def _peak_mb() -> int:
    """The peak memory of this process in MB; getrusage would include the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 // 10**6 for line in lines if line.startswith("VmHWM:"))


def fetch(url: str, name: str) -> float:
    """Fetch the rows of a view; return how many seconds that took."""
    with psycopg.connect(url) as connection:
        began_s = time.perf_counter()
        rows = connection.execute(SELECT[name], [STUDY]).fetchall()
        took_s = time.perf_counter() - began_s
    assert rows
    return took_s


def frame(url: str, name: str) -> float:
    """Make a data frame with studydb; return how many seconds that took."""
    import pandas  # noqa: F401, ICN001, PLC0415  an extra, imported before the measurement

    study = studydb.load_study(STUDY, storage=url)
    began_s = time.perf_counter()
    made = getattr(study, name)()
    took_s = time.perf_counter() - began_s
    study.close()
    assert len(made)
    return took_s
