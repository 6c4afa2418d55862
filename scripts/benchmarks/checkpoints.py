"""Checkpoints in an S3 server: throughput, memory, and the time that saves add to training."""

import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import psutil
from fleet.faulty_store import faulty_store
from fleet.workers import Fleet, WorkerProcess

import studydb
from benchmarks import options, output, places
from benchmarks.saving import LIBRARY, NOTHING, OURS
from benchmarks.space import STUDY
from studydb.artifacts import Place, open_store

SCRIPTS = Path(__file__).parents[1]
MB = 1_000_000
FILES = 16
LEAST_RATIO, MOST_MEMORY_MB, MOST_LOSS = 0.7, 200.0, 0.05
RUN_TIMEOUT_S = 600.0

_SPAWN = multiprocessing.get_context("spawn")


@click.command()
@click.option(
    "--part",
    "parts",
    type=click.Choice(["throughput", "memory", "loop"]),
    multiple=True,
    default=("throughput", "memory", "loop"),
)
@click.option(
    "--megabytes",
    type=click.IntRange(1),
    default=2048,
    help='Size of the directory in "throughput" and "memory".',
)
@click.option("--loop-megabytes", type=click.IntRange(1), default=200, help="Size of each save.")
@click.option("--every", type=click.FloatRange(0.1), default=5.0, help="Seconds between saves.")
@click.option("--steps", type=click.IntRange(1), default=6, help="Saves of each loop.")
@options.number_of_rounds(3, "Turns of each contender.")
@options.as_json
def checkpoints(
    *,
    parts: Sequence[str],
    megabytes: int,
    loop_megabytes: int,
    every: float,
    steps: int,
    rounds: int,
    as_json: bool,
) -> None:
    """
    Checkpoints in an S3 server (moto) on this host, compared with transfers by fsspec ("library").

    "throughput" sends a directory and fetches it. In "memory", a trial of a real worker saves and
    restores the directory; the table shows how much the memory of worker, trial and sender grows.
    "loop" compares three training loops: without saves, with saves by studydb, and with uploads by
    fsspec in a thread. Each round runs the three loops in another order. The loss of a loop with
    saves is the share by which this loop takes longer than the round's loop without saves. In
    "loop", the server runs with the lowest priority (nice 19), because it stands for a server on
    another host. The exit code is 1 if the throughput is below 0.7 of the library's, the memory
    grows by 200 MB or more, or the median loss with studydb is at least 5 %. The folder of the run
    is in $TMPDIR, and needs three times the directory's size.
    """
    measured: dict[str, Any] = {}
    with places.folder() as folder, faulty_store(fails=False) as store:
        os.environ |= {"STUDYDB_KEY_FILE": str(folder / "key"), "OMP_NUM_THREADS": "1"}
        if "throughput" in parts:
            source = _directory(folder / "source", megabytes)
            measured["throughput"] = _throughput(store.url, source, folder, megabytes, rounds)
        if "memory" in parts:
            source = _directory(folder / "source", megabytes)
            measured["memory"] = _memory(store.url, source, folder)
        if "loop" in parts:
            store.give_way()
            source = _directory(folder / "loop", loop_megabytes)
            measured["loop"] = _loop(store.url, source, folder, (every, steps, rounds))
    conditions = {"cores": os.cpu_count(), "megabytes": megabytes, "rounds": rounds}
    _show(measured, conditions, as_json=as_json)
    if not all(one["holds"] for one in measured.values()):
        raise click.exceptions.Exit(1)


def _directory(path: Path, megabytes: int) -> Path:
    """Make a directory of `FILES` files with random bytes, unless it exists."""
    if not path.exists():
        path.mkdir()
        for number in range(FILES):
            with (path / f"{number:02}.bin").open("wb") as file:
                for _ in range(megabytes // FILES):
                    file.write(os.urandom(MB))
    return path


# --- throughput


def _throughput(
    url: str, source: Path, folder: Path, megabytes: int, rounds: int
) -> dict[str, Any]:
    took: dict[str, list[float]] = {}
    for number in range(rounds):
        names = (OURS, LIBRARY) if number % 2 else (LIBRARY, OURS)
        for name in names:
            seconds = _apart(_transfer, name, f"{url}/throughput", source, folder / "copy")
            for way, taken_s in zip(("up", "down"), seconds, strict=True):
                took.setdefault(f"{name} {way}", []).append(megabytes / taken_s)
    ratios = {
        way: statistics.median(took[f"{OURS} {way}"]) / statistics.median(took[f"{LIBRARY} {way}"])
        for way in ("up", "down")
    }
    return {"mb_per_s": took, "ratio": ratios, "holds": min(ratios.values()) >= LEAST_RATIO}


def _transfer(name: str, url: str, source: Path, target: Path) -> tuple[float, float]:
    """Send a directory, fetch it, delete both copies; return the seconds to send and to fetch."""
    import fsspec  # noqa: PLC0415  in the process that is measured

    store = open_store(url)
    uuids = [str(uuid4()) for _ in range(3)]
    store.put_bytes(Place(uuids[0], uuids[1], 1, 1, uuids[2]), b"connect")
    files, path = fsspec.core.url_to_fs(f"{url}/library")
    began_s = time.perf_counter()
    if name == OURS:
        stored = store.put_directory(Place(uuids[0], uuids[1], 1, 2, uuids[2]), source)
        sent_s = time.perf_counter()
        store.get_directory(stored.url, digest=stored.digest, target=target)
    else:
        files.put(f"{source}/", f"{path}/", recursive=True)
        sent_s = time.perf_counter()
        files.get(f"{path}/", str(target), recursive=True)
    ended_s = time.perf_counter()
    assert sum(1 for one in target.rglob("*") if one.is_file()) == FILES
    shutil.rmtree(target)
    store.delete_study(uuids[0])
    if name == LIBRARY:
        files.rm(path, recursive=True)
    return sent_s - began_s, ended_s - sent_s


def _apart(call: Callable[..., Any], *arguments: Any) -> Any:
    with _SPAWN.Pool(1) as pool:
        return pool.apply(call, arguments)


# --- memory


def _memory(url: str, source: Path, folder: Path) -> dict[str, Any]:
    study = _study(
        folder / "memory.db",
        "benchmarks.saving:save_and_die",
        url,
        {"source": str(source), "folder": str(folder), "files": FILES},
    )
    with _worker(study, folder) as worker:
        base_mb = _peak_until(worker, folder / "before")
        peaks = {"save": _peak_until(worker, folder / "saved")}
        peaks["restore"] = _peak_until(worker, folder / "restored")
        assert worker.exit_code(RUN_TIMEOUT_S) == 0, worker.output()
    grown = {name: peak_mb - base_mb for name, peak_mb in peaks.items()}
    study.close()
    return {
        "base_mb": base_mb,
        "grown_mb": grown,
        "holds": max(grown.values()) < MOST_MEMORY_MB,
    }


def _peak_until(worker: WorkerProcess, mark: Path) -> float:
    """Return the peak of the processes' total memory in MB until `mark` exists; delete `mark`."""
    peak_bytes, deadline_s = 0, time.monotonic() + RUN_TIMEOUT_S
    while not mark.exists() or not peak_bytes:
        assert time.monotonic() < deadline_s, worker.output()
        peak_bytes = max(peak_bytes, sum(map(_resident_bytes, _processes(worker))))
        time.sleep(0.02)
    mark.unlink()
    return peak_bytes / MB


def _processes(worker: WorkerProcess) -> list[psutil.Process]:
    """The worker, its trial and the trial's sender; an empty list if one of them ends meanwhile."""
    assert worker.runs, worker.output()
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(worker.pid), *worker.children(), *worker.commands()]
    return []


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


# --- loop


def _loop(url: str, source: Path, folder: Path, timing: tuple[float, int, int]) -> dict[str, Any]:
    every_s, steps, rounds = timing
    constants = {
        "source": str(source),
        "target": f"{url}/loop",
        "steps": steps,
        "products": _products(every_s),
    }
    names = (NOTHING, OURS, LIBRARY)
    study = _study(
        folder / "loop.db",
        "benchmarks.saving:train",
        url,
        constants | {"saver": studydb.choice(list(names))},
        enqueued=[names[(turn + place) % 3] for turn, place in product(range(rounds), range(3))],
    )
    with _worker(study, folder) as worker:
        assert worker.exit_code(RUN_TIMEOUT_S) == 0, worker.output()
    took_s: dict[str, list[float]] = {name: [] for name in names}
    for row in study.trials_dataframe().to_dict("records"):
        took_s[str(row["saver"])].append(float(_last(study, int(row["number"]))))
    study.close()
    losses = {
        name: [
            each / alone - 1.0 for each, alone in zip(took_s[name], took_s[NOTHING], strict=True)
        ]
        for name in names[1:]
    }
    loss = {name: statistics.median(each) for name, each in losses.items()}
    return {
        "seconds": took_s,
        "losses": losses,
        "loss": loss,
        "holds": loss[OURS] < MOST_LOSS,
    }


def _last(study: studydb.Study, number: int) -> float:
    results = study.results_dataframe()
    mine = results[results["number"] == number]
    return float(mine["took_s"].dropna().iloc[-1])


def _products(seconds: float) -> int:
    """Return how many products of matrices one core computes in this time."""
    return int(seconds / _apart(_product_s))


def _product_s() -> float:
    import numpy as np  # noqa: PLC0415  an import of numpy reads OMP_NUM_THREADS

    matrix, calls = np.random.default_rng(0).random((256, 256)), 2000
    for _ in range(200):
        matrix @ matrix
    began_s = time.perf_counter()
    for _ in range(calls):
        matrix @ matrix
    return (time.perf_counter() - began_s) / calls


# --- studies and workers


def _study(
    file: Path, trainable: str, url: str, space: dict[str, Any], enqueued: Sequence[str] = ()
) -> studydb.Study:
    study = studydb.create_study(
        STUDY,
        trainable,
        workdir=SCRIPTS,
        space=space | {"x": studydb.uniform(0.0, 1.0)},
        metric="error",
        mode="min",
        num_trials=max(1, len(enqueued)),
        checkpoints=url,
        storage=f"sqlite:///{file}",
    )
    for name in enqueued:
        study.enqueue({"saver": name})
    return study


@contextmanager
def _worker(study: studydb.Study, folder: Path) -> Iterator[WorkerProcess]:
    with Fleet(str(study.database.url), study.name, folder) as fleet:
        yield fleet.start()


# --- output


def _show(measured: dict[str, Any], conditions: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.show_json({"conditions": conditions} | measured)
        return
    table = output.table("", "measured", "limit")
    if "throughput" in measured:
        for name, rates in measured["throughput"]["mb_per_s"].items():
            table.add_row(name, f"{statistics.median(rates):.0f} MB/s", "")
        for way, ratio in measured["throughput"]["ratio"].items():
            table.add_row(f"studydb / library, {way}", f"{ratio:.2f} x", f">= {LEAST_RATIO:g} x")
    if "memory" in measured:
        for name, grown_mb in measured["memory"]["grown_mb"].items():
            limit = f"< {MOST_MEMORY_MB:.0f} MB"
            table.add_row(f"memory of a {name}", f"{grown_mb:.0f} MB", limit)
    if "loop" in measured:
        for name, loss in measured["loop"]["loss"].items():
            limit = f"< {MOST_LOSS:.0%}" if name == OURS else ""
            each = measured["loop"]["losses"][name]
            spread = f"{loss:.1%} ({min(each):.1%} to {max(each):.1%})"
            table.add_row(f"lost by saves of {name}", spread, limit)
    note = "Contenders took turns."
    output.show_tables(table, note=note, conditions=conditions)
