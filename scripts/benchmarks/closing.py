"""How long the calls of workers take before and while a large HyperBand rung closes."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import postgres

import studydb
from benchmarks import output, places, rung_filling
from benchmarks.client import Client
from benchmarks.options import Turns
from benchmarks.rung_worker import Call, RungWorker
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch
from studydb.operations.finish import finish

HALVINGS = 4
"""How many rungs the first bracket has."""

FIRST = RungKey(0, 1)
CLOSING_LIMIT_S = 600.0
MS = 1e3

IS_DONE = """
    SELECT closed_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM rung_entry WHERE rung_id = rung.id AND waiting
            AND (rung_entry.score, rung_entry.ordinal) > (closed_cutoff, closed_ordinal))
    FROM rung WHERE study_id = 1 AND bracket = 0 AND step = 1"""

GIVEN_UP = "SELECT count(*) FROM trial WHERE study_id = 1 AND reason = 'GIVEN_UP'"

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Closing:
    """
    What was measured.

    Attributes:
        waits_ms: How long each call of the workers took, by kind of call. Only calls count that
            began before the rung could close.
        waits_closing_ms: The same for the calls that began during `took_s`.
        took_s: The seconds from the end of the last trial that could reach the rung to the moment
            when no trial was left to give up.
    """

    waits_ms: Mapping[str, Sequence[float]]
    waits_closing_ms: Mapping[str, Sequence[float]]
    took_s: float
    n_given_up: int


def scheduler_of(members: int) -> studydb.HyperBand:
    """Return a HyperBand whose first bracket has this many trials."""
    made = studydb.HyperBand(max_t=members, reduction_factor=members ** (1 / HALVINGS))
    assert made.sizes[0] == members
    return made


def measure(server: str, turns: Turns, *, members: int) -> Closing:
    """
    Close a rung of `members` trials while workers work; return how long the workers' calls took.

    All trials of the bracket but one wait at the rung. The end of this one trial lets the rung
    close. The workers report at the rungs of other brackets, save, end attempts and get trials. A
    worker that looks for work also closes the rung, and gives up the trials that do not go on.
    """
    with ExitStack() as stack:
        urls = stack.enter_context(places.databases(server, "closing"))
        url = places.with_tables(urls["closing"])
        rung_filling.load(
            url, scheduler_of(members), trials=members - 1, waiting=members - 1, rungs=[FIRST]
        )
        client = Client(url)
        stack.callback(client.close)
        last = client.ask()
        assert last.bracket == FIRST.bracket
        with _workers(url, max(turns.processes)) as stop:
            time.sleep(turns.seconds)
            began_s = time.monotonic()
            finish(
                client.database, client.study, lease=last, outcome=Reason.COMPLETED, batch=Batch(1)
            )
            _await_end(url, began_s)
            ended_s = time.monotonic()
            calls = stop()
        with postgres.connect(url) as connection:
            (n_given_up,) = connection.execute(GIVEN_UP).fetchone() or (0,)
    return Closing(
        _waits_ms(calls, 0.0, began_s),
        _waits_ms(calls, began_s, ended_s),
        ended_s - began_s,
        n_given_up,
    )


def _await_end(url: str, began_s: float) -> None:
    with postgres.connect(url) as connection:
        while (connection.execute(IS_DONE).fetchone() or (False,)) != (True,):
            if time.monotonic() - began_s > CLOSING_LIMIT_S:
                raise RuntimeError(
                    f"After {CLOSING_LIMIT_S:.0f} s, the rung is still open, or its closing "
                    "has not given up all trials that it must give up."
                )
            time.sleep(0.1)


@contextmanager
def _workers(url: str, n: int) -> Iterator[Any]:
    """Start workers, and yield a function that stops them and returns their calls."""
    stopping = _SPAWN.Event()
    pipes, processes = [], []
    for _ in range(n):
        mine, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(url, theirs, stopping), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    for pipe in pipes:
        assert pipe.recv() == "ready"

    def stop() -> list[Call]:
        stopping.set()
        calls = [call for pipe in pipes for call in pipe.recv()]
        for process in processes:
            process.join()
        return calls

    yield stop


def _work(url: str, pipe: Any, stopping: Any) -> None:
    worker = RungWorker(url)
    pipe.send("ready")
    worker.calls.clear()
    while not stopping.is_set():
        worker.turn()
    pipe.send(worker.calls)
    worker.close()


def _waits_ms(calls: Sequence[Call], from_s: float, to_s: float) -> dict[str, list[float]]:
    waits: dict[str, list[float]] = {}
    for call in calls:
        if from_s <= call.began_s < to_s:
            waits.setdefault(call.kind, []).append(call.took_s * MS)
    return waits


def _summary(waits: Sequence[float]) -> dict[str, float]:
    if not waits:
        return {"calls": 0, "median": 0.0, "p99": 0.0, "longest": 0.0}
    return {
        "calls": len(waits),
        "median": statistics.median(waits),
        "p99": float(np.percentile(waits, 99)),
        "longest": max(waits),
    }


def show(found: Closing, conditions: Mapping[str, Any], *, as_json: bool) -> None:
    """Print how long the calls of the workers took, before and during the closing."""
    kinds = sorted({*found.waits_ms, *found.waits_closing_ms})
    waits = {
        kind: {
            "before": _summary(found.waits_ms.get(kind, ())),
            "closing": _summary(found.waits_closing_ms.get(kind, ())),
        }
        for kind in kinds
    }
    if as_json:
        shown = {"closing_s": found.took_s, "given_up": found.n_given_up, "waits_ms": waits}
        output.show_json({"conditions": dict(conditions), **shown})
        return
    headings = [f"{when}: {what}" for when in ("before", "closing") for what in _SHOWN]
    table = output.table("ms", *headings)
    for kind, of_kind in waits.items():
        cells = [f"{of_kind[when][what]:,.1f}" for when in of_kind for what in _SHOWN]
        table.add_row(kind, *cells)
    note = f"{found.n_given_up:,} trials were given up in {found.took_s:.1f} s."
    output.show_tables(table, note=note, conditions=conditions)


_SHOWN = ("median", "p99", "longest")
