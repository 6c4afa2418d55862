"""The speed of `studydb.simulate`, in reports per second."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import studydb
from benchmarks import options, output
from benchmarks.schedulers import MAX_T, TASKS
from studydb.domain.scheduling import Scheduler

SCHEDULERS: Mapping[str, Scheduler] = {
    "FIFO": studydb.FIFO(),
    "ASHA, stopping": studydb.ASHA(max_t=MAX_T, reduction_factor=3),
    # With the factors 2.4 for stopping and 2 for promotion, half of the reports are judged.
    "ASHA, stopping, half judged": studydb.ASHA(max_t=MAX_T, reduction_factor=2.4),
    "ASHA, promotion": studydb.ASHA(max_t=MAX_T, reduction_factor=3, type="promotion"),
    "ASHA, promotion, half judged": studydb.ASHA(max_t=MAX_T, reduction_factor=2, type="promotion"),
}


@click.command()
@options.number_of_rounds(5, "How often each scheduler is simulated; the median counts.")
@click.option("--trials", type=click.IntRange(10, 600), default=600)
@options.as_json
def simulate(*, rounds: int, trials: int, as_json: bool) -> None:
    """
    Reports per second of `studydb.simulate`, and the share of them that are judged at rungs.

    The seconds are CPU time: a simulation is one process with one thread, and other processes of
    the machine would lengthen its wall-clock time. The schedulers take turns.
    """
    path = TASKS["noisy digits"]
    # The first call of a process takes longer: it imports modules and makes the empty database.
    studydb.simulate(None, None, [[1.0]])
    rates: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    judged: dict[str, float] = {}
    for seed in range(rounds):
        for name, scheduler in SCHEDULERS.items():
            per_second, share = _measure(scheduler, path, trials, seed)
            rates[name].append(per_second)
            judged[name] = share
    conditions = {"rounds": rounds, "trials": trials, "workers": 4}
    medians = {name: statistics.median(of) for name, of in rates.items()}
    if as_json:
        shown: dict[str, Any] = {"reports_per_s": medians, "judged": judged}
        output.show_json({"conditions": conditions, **shown})
        return
    table = output.table("", "reports/s", "judged")
    for name, median in medians.items():
        table.add_row(name, f"{median:,.0f}", f"{judged[name]:.0%}")
    output.show_tables(table, note="Reports per second of CPU time.", conditions=conditions)


def _measure(scheduler: Scheduler, path: Path, trials: int, seed: int) -> tuple[float, float]:
    began_s = time.process_time()
    simulated = studydb.simulate(scheduler, None, path, seed=seed, num_trials=trials, step_s=1.0)
    elapsed_s = time.process_time() - began_s
    return simulated.n_steps / elapsed_s, simulated.n_judged / simulated.n_steps
