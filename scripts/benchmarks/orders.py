"""How good are the trials that ASHA finds in recorded curves, by stopping and by promotion?"""

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import click
from harness.arrange import new_checkpoint, new_study, register_worker
from harness.curve_reader import recorded_curves

from benchmarks import options, output, places
from studydb.db import Database, connect
from studydb.domain.life.decisions import Action
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason
from studydb.domain.metrics import STEP, Result
from studydb.domain.records import Study
from studydb.lease.acquire import Acquirer
from studydb.lease.held import HeldAttempt
from studydb.operations.reads import list_trials
from studydb.schedulers import ASHA, FIFO
from studydb.schedulers.base import BaseScheduler

Curve = Sequence[float]

MAX_T = 27
LEASE_S = 3600.0
"""Longer than a search takes: nothing renews the leases."""

RANDOM, STOPPING, PROMOTION = "random search", "ASHA, stopping", "ASHA, promotion"
SCHEDULERS: Mapping[str, BaseScheduler] = {
    RANDOM: FIFO(),
    STOPPING: ASHA(max_t=MAX_T, grace_period=1, reduction_factor=3),
    PROMOTION: ASHA(max_t=MAX_T, grace_period=1, reduction_factor=3, type="promotion"),
}
PAIRS = ((STOPPING, RANDOM), (PROMOTION, RANDOM), (PROMOTION, STOPPING))


@click.command()
@click.option("--orders", type=click.IntRange(2), default=200, help="Random orders of the curves.")
@click.option("--workers", type=click.IntRange(1), default=4, help="Simulated workers.")
@click.option("--epochs", type=click.IntRange(MAX_T), default=270, help="Epochs of each search.")
@options.as_json
def orders(*, orders: int, workers: int, epochs: int, as_json: bool) -> None:
    """
    The best error after 27 epochs that random search and ASHA find with the same number of epochs.

    Simulated workers claim, ask, report, finish and promote by transactions on SQLite, but they
    read the errors from 150 recorded curves. All rules get the curves in the same random orders; an
    epoch takes one unit of simulated time. An epoch is wasted if a trial trains it after the
    decision to stop or pause the trial, or trains it twice. No epoch may be wasted.
    """
    curves, found = recorded_curves(), dict[str, list[Found]]()
    with _database() as database:
        for seed in range(orders):
            order = random.Random(seed).sample(curves, len(curves))
            for rule, scheduler in SCHEDULERS.items():
                search = Search(database, order, scheduler, n_workers=workers, n_epochs=epochs)
                found.setdefault(rule, []).append(search.run())
    conditions = {"orders": orders, "workers": workers, "epochs": epochs}
    _show(found, conditions, as_json=as_json)


@contextmanager
def _database() -> Iterator[Database]:
    """Yield a database in a temporary file, which does not wait for the disk."""
    with places.folder() as folder:
        url = places.with_tables(f"sqlite:///{folder}/studydb.db")
        with closing(connect(url, connections=1)) as database:
            cursor = database.connections.take()
            cursor.execute("PRAGMA synchronous=OFF")
            database.connections.give_back(cursor)
            yield database


@dataclass(frozen=True)
class Found:
    """
    The outcome of a search.

    Attributes:
        best: The least error of the trials that were trained for `MAX_T` epochs.
        n_trials: The number of trials that were begun.
        n_wasted: The number of wasted epochs.
    """

    best: float
    n_trials: int
    n_wasted: int


class Worker:
    """A worker that holds at most one trial, and trains an epoch at a time."""

    def __init__(self, database: Database, study: Study, order: Sequence[Curve]) -> None:
        self._database, self._study, self._order = database, study, order
        worker_id = register_worker(database, study, lease_s=LEASE_S)
        self._acquirer = Acquirer(database, study, worker_id=worker_id, lease_s=LEASE_S)
        self.held: HeldAttempt | None = None

    def acquire(self) -> None:
        """Claim or make a trial, if there is one for this worker."""
        claim = self._acquirer.acquire()
        self.held = None if claim is None else HeldAttempt(self._database, self._study, claim)

    def report(self) -> None:
        """Report one epoch; end the attempt if there is a verdict, as an own loop does."""
        held = self.held
        assert held is not None
        step = held.buffer.last_step + 1
        error = self._order[held.lease.number][step - 1]
        if held.add(Result(step, error, {})):
            held.flush()
        if held.verdict is not None:
            if held.verdict.action is Action.PAUSE:
                held.save(new_checkpoint(held.lease, step=step), b"")
            self.release()

    def release(self) -> None:
        """Flush the results, and give up the trial."""
        if self.held is not None:
            self.held.end(Reason.PREEMPTED)
            self.held = None


class Search:
    """One search: workers train trials, and the n-th trial has the n-th curve of an order."""

    def __init__(
        self,
        database: Database,
        order: Sequence[Curve],
        scheduler: BaseScheduler,
        *,
        n_workers: int,
        n_epochs: int,
    ) -> None:
        self._database, self._n_epochs = database, n_epochs
        rules = read_rules({STEP: MAX_T})
        self._study = new_study(
            database, scheduler=scheduler, num_trials=len(order), rules=rules, metric="error"
        )
        self._workers = [Worker(database, self._study, order) for _ in range(n_workers)]

    def run(self) -> Found:
        """Train `n_epochs` epochs; the worker that is free first goes next."""
        turns, numbers = list[tuple[int, int, Worker]](), count()
        for worker in self._workers:
            heappush(turns, (0, next(numbers), worker))
        n_trained = 0
        while turns:
            now, _, worker = heappop(turns)
            if worker.held is not None:
                worker.report()
            if n_trained == self._n_epochs:
                continue
            if worker.held is None:
                worker.acquire()
            if worker.held is not None:
                n_trained += 1
                heappush(turns, (now + 1, next(numbers), worker))
            elif turns:  # wait until another worker has reported
                heappush(turns, (turns[0][0], next(numbers), worker))
        for worker in self._workers:
            worker.release()
        return self._found(n_trained)

    def _found(self, n_trained: int) -> Found:
        trials = [trial.summary for trial in list_trials(self._database, self._study)]
        full = [each.last_value for each in trials if each.last_step == MAX_T]
        n_kept = sum(each.n_results for each in trials)
        if not full:
            raise click.ClickException(f"No trial was trained for {MAX_T} epochs: raise --epochs.")
        best = min(value for value in full if value is not None)
        return Found(best, len(trials), n_trained - n_kept)


def _difference(ours: Sequence[Found], theirs: Sequence[Found]) -> tuple[float, float]:
    """Return the mean of the paired differences, and two standard errors."""
    pairs = [a.best - b.best for a, b in zip(ours, theirs, strict=True)]
    return statistics.mean(pairs), 2 * statistics.stdev(pairs) / len(pairs) ** 0.5


def _show(
    found: Mapping[str, Sequence[Found]], conditions: Mapping[str, int], *, as_json: bool
) -> None:
    means = {rule: statistics.mean(each.best for each in of) for rule, of in found.items()}
    trials = {rule: statistics.mean(each.n_trials for each in of) for rule, of in found.items()}
    wasted = {rule: sum(each.n_wasted for each in of) for rule, of in found.items()}
    differences = {
        f"{ours} - {theirs}": _difference(found[ours], found[theirs]) for ours, theirs in PAIRS
    }
    if as_json:
        output.show_json(
            {
                "conditions": conditions,
                "mean_best_error": means,
                "mean_trials": trials,
                "wasted_epochs": wasted,
                "differences": {
                    pair: {"mean": mean, "two_standard_errors": error}
                    for pair, (mean, error) in differences.items()
                },
            }
        )
        return
    searches = output.table("", "mean best error", "trials", "wasted epochs")
    for rule in found:
        searches.add_row(rule, f"{means[rule]:.4f}", f"{trials[rule]:.1f}", str(wasted[rule]))
    pairs = output.table("difference of the best errors", "mean", "± 2 standard errors")
    for pair, (mean, error) in differences.items():
        pairs.add_row(pair, f"{mean:+.4f}", f"{error:.4f}")
    output.show_tables(searches, pairs, note="Lower is better.", conditions=conditions)
