"""How good are the trials that each scheduler finds in recorded curves, for the same epochs?"""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import studydb
from benchmarks import options, output
from studydb import schedulers as known
from studydb.domain.errors import InvalidSpec
from studydb.domain.specs.grammar import parse_call

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schedulers.md"
BEGIN, END = "<!-- scripts/bench schedulers --write -->", "<!-- end of the tables -->"

MAX_T = 27

TASKS = {
    "digits": ROOT / "tests" / "data" / "digits_mlp_curves.json",
    "noisy digits": ROOT / "tests" / "data" / "noisy_digits_curves.json",
}

SCHEDULERS = {
    "random search": "FIFO()",
    "ASHA, stopping": f"ASHA(max_t={MAX_T}, reduction_factor=3)",
    "ASHA, stopping, Syne Tune's rule": f"ASHA(max_t={MAX_T}, reduction_factor=3, rule=syne_tune)",
    "ASHA, promotion": f"ASHA(max_t={MAX_T}, reduction_factor=3, type=promotion, end_game=0)",
    "ASHA, promotion, end game 0.2": (
        f"ASHA(max_t={MAX_T}, reduction_factor=3, type=promotion, end_game=0.2)"
    ),
    "ASHA, promotion, end game 0.4": (
        f"ASHA(max_t={MAX_T}, reduction_factor=3, type=promotion, end_game=0.4)"
    ),
    "HyperBand": f"HyperBand(max_t={MAX_T}, reduction_factor=3)",
    "median stopping": "MedianStopping()",
    "one-epoch": f"OneEpoch(i=1, top_k=5, max_t={MAX_T})",
}
"""The schedulers by name, as on the command line."""

RANDOM = "random search"
RESAMPLES = 2000


@click.command()
@click.option("--orders", type=click.IntRange(2), default=200, help="Random orders of the curves.")
@click.option("--workers", type=click.IntRange(1), default=4, help="Simulated workers.")
@click.option("--epochs", type=click.IntRange(MAX_T), default=270, help="Epochs of each search.")
@click.option("--processes", type=click.IntRange(1), default=1, help="Processes that simulate.")
@click.option("--only", multiple=True, help="A scheduler's name; may be repeated. Default: all.")
@click.option("--write", is_flag=True, help="Write the tables into docs/schedulers.md.")
@options.as_json
def schedulers(
    *,
    orders: int,
    workers: int,
    epochs: int,
    processes: int,
    only: tuple[str, ...],
    write: bool,
    as_json: bool,
) -> None:
    """
    The best error after 27 epochs that each scheduler finds with the same number of epochs.

    `studydb.simulate` runs each scheduler on the curves of two tasks. All schedulers get the curves
    in the same random orders; an epoch takes one unit of simulated time. Only trials that were
    trained for 27 epochs count. No epoch may be trained after the decision to end its trial.
    """
    conditions = {"orders": orders, "workers": workers, "epochs": epochs}
    chosen = {name: text for name, text in SCHEDULERS.items() if not only or name in only}
    measured = {
        task: _measure(path, chosen, conditions, processes=processes)
        for task, path in TASKS.items()
    }
    if write:
        _write(_markdown(measured, conditions))
    if as_json:
        output.show_json({"conditions": conditions, "tasks": _as_json(measured)})
        return
    tables = [_table(task, of_task) for task, of_task in measured.items()]
    output.show_tables(*tables, note="Intervals of 95 % by bootstrap.", conditions=conditions)


@dataclass(frozen=True)
class Found:
    """
    The outcome of one search.

    Attributes:
        best: The least error of the trials that were trained for `MAX_T` epochs.
        n_beyond: The epochs that were trained after a decision.
    """

    best: float
    n_trials: int
    n_complete: int
    n_epochs: int
    n_beyond: int


@dataclass(frozen=True)
class Score:
    """
    The searches of one scheduler.

    Attributes:
        less: How much less the error is than by random search, with the same orders; None without.
        interval, interval_of_less: 95 % of the means of bootstrap samples of orders.
    """

    mean: float
    interval: tuple[float, float]
    less: float | None
    interval_of_less: tuple[float, float] | None
    n_trials: float
    n_complete: float
    n_beyond: int


Scores = Mapping[str, Score]


def _measure(
    path: Path, chosen: Mapping[str, str], conditions: Mapping[str, int], *, processes: int
) -> Scores:
    found: dict[str, list[Found]] = {}
    with _mapped(processes) as run:
        for name, text in chosen.items():
            try:
                known.from_call(parse_call(text))
            except InvalidSpec as error:
                click.echo(f"{name} is left out: {error}", err=True)
                continue
            call = partial(_search, path, text, conditions["workers"], conditions["epochs"])
            found[name] = run(call, range(conditions["orders"]))
            mean = statistics.fmean(each.best for each in found[name])
            click.echo(f"{path.stem}: {name}: {mean:.4f}", err=True)
    return {name: _score(of, found.get(RANDOM)) for name, of in found.items()}


class _mapped:  # noqa: N801  used as a function
    """Yield a `map`, in this process or in several."""

    def __init__(self, processes: int) -> None:
        self._pool = get_context("spawn").Pool(processes) if processes > 1 else None

    def __enter__(self) -> Callable[[Callable[[int], Found], Sequence[int]], list[Found]]:
        if self._pool is None:
            return lambda call, seeds: [call(seed) for seed in seeds]
        return partial(self._pool.map, chunksize=5)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.terminate()


@cache
def _curves(path: Path) -> studydb.RecordedCurves:
    return studydb.RecordedCurves.load(path)


def _search(path: Path, text: str, workers: int, epochs: int, seed: int) -> Found:
    scheduler = known.from_call(parse_call(text))
    simulated = studydb.simulate(
        scheduler, None, _curves(path), workers=workers, seed=seed, max_steps=epochs, step_s=1.0
    )
    if simulated.best_value is None:
        raise click.ClickException(f"{text} trained no trial for {MAX_T} epochs: raise --epochs.")
    return Found(
        simulated.best_value,
        len(simulated.trials),
        len(simulated.completions),
        simulated.n_steps,
        simulated.n_beyond,
    )


def _score(found: Sequence[Found], by_random: Sequence[Found] | None) -> Score:
    best = [each.best for each in found]
    less = by_random and [a.best - b.best for a, b in zip(by_random, found, strict=True)]
    return Score(
        mean=statistics.fmean(best),
        interval=_interval(best),
        less=statistics.fmean(less) if less else None,
        interval_of_less=_interval(less) if less else None,
        n_trials=statistics.fmean(each.n_trials for each in found),
        n_complete=statistics.fmean(each.n_complete for each in found),
        n_beyond=sum(each.n_beyond for each in found),
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the percentiles 2.5 and 97.5 of the means of bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 40], means[-RESAMPLES // 40 - 1]


# --- what is printed

HEADINGS = ("", "mean best error", "less than at random", "trials", "whole", "beyond")


def _cells(scores: Scores) -> Iterator[tuple[str, ...]]:
    for name, score in scores.items():
        less = ""
        if score.less is not None and score.interval_of_less is not None and name != RANDOM:
            less = f"{score.less:+.4f} {_width(score.interval_of_less)}"
        yield (
            name,
            f"{score.mean:.4f} {_width(score.interval)}",
            less,
            f"{score.n_trials:.0f}",
            f"{score.n_complete:.1f}",
            str(score.n_beyond),
        )


def _width(interval: tuple[float, float]) -> str:
    return f"± {(interval[1] - interval[0]) / 2:.4f}"


def _table(task: str, scores: Scores) -> Table:
    table = output.table(*HEADINGS, title=task)
    for cells in _cells(scores):
        table.add_row(*cells)
    return table


def _as_json(measured: Mapping[str, Scores]) -> dict[str, Any]:
    return {
        task: {name: score.__dict__ for name, score in scores.items()}
        for task, scores in measured.items()
    }


def _markdown(measured: Mapping[str, Scores], conditions: Mapping[str, int]) -> str:
    described = (
        f"{conditions['workers']} simulated workers, {conditions['epochs']} epochs, "
        f"{conditions['orders']} orders of the curves, intervals of 95 % by bootstrap."
    )
    parts = [described]
    for task, scores in measured.items():
        rows = [f"| {' | '.join(cells)} |" for cells in _cells(scores)]
        head = f"| {task} | {' | '.join(HEADINGS[1:])} |"
        parts.append("\n".join([head, "|---|---|---|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _write(tables: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise click.ClickException(f"{PAGE} has no lines {BEGIN!r} and {END!r}.")
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")
