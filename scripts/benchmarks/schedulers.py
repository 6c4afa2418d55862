"""The best error that each scheduler finds if all train the same number of recorded epochs."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import studydb
from benchmarks import killed_workers, options, output
from benchmarks.found import Found
from studydb import schedulers as known
from studydb.domain.errors import InvalidSpec
from studydb.domain.specs.grammar import parse_call
from studydb.study import simulation

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schedulers.md"
BEGIN, END = "<!-- scripts/bench schedulers --write -->", "<!-- end of the tables -->"
BEGIN_KILLED = "<!-- scripts/bench schedulers --kills 5 --orders 8 --write -->"
END_KILLED = "<!-- end of the tables with kills -->"

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
"""The spec of each scheduler, by the name that the tables show."""

WITH_KILLS = (
    *("random search", "ASHA, stopping", "ASHA, promotion, end game 0.4"),
    *("HyperBand", "median stopping", "one-epoch"),
)
"""The schedulers that `--kills` runs by default: few, as a search by real workers takes 10 s."""

RANDOM = "random search"
RESAMPLES = 2000


@click.command()
@click.option("--orders", type=click.IntRange(2), default=200, help="Random orders of the curves.")
@click.option("--workers", type=click.IntRange(1), default=4, help="Workers that train.")
@click.option("--epochs", type=click.IntRange(MAX_T), default=270, help="Epochs of each search.")
@click.option("--processes", type=click.IntRange(1), default=1, help="Processes that simulate.")
@click.option(
    "--kills",
    type=click.IntRange(0, 50),
    help="Train with real worker processes, and kill this number of them in each search (SIGKILL).",
)
@click.option(
    "--only",
    type=click.Choice(list(SCHEDULERS)),
    multiple=True,
    help="Run only this scheduler; may be given several times.",
)
@click.option("--write", is_flag=True, help="Write the tables into docs/schedulers.md.")
@options.as_json
def schedulers(
    *,
    orders: int,
    workers: int,
    epochs: int,
    processes: int,
    kills: int | None,
    only: tuple[str, ...],
    write: bool,
    as_json: bool,
) -> None:
    """
    The best error after 27 epochs that each scheduler finds in a search of --epochs epochs.

    `studydb.simulate` runs each scheduler on the curves of two tasks. All schedulers get the curves
    in the same random orders; an epoch takes a second of simulated time. Only the errors of trials
    that were trained for 27 epochs are compared. The column `after decision` counts the epochs that
    were trained after the decision to end or pause their trial. The exit code is 1 if there is such
    an epoch.

    With --kills, real worker processes on SQLite replay the curves, and some of them are killed.
    """
    conditions = {"orders": orders, "workers": workers, "epochs": epochs}
    if kills is not None:
        conditions["kills"] = kills
    only = only or (tuple(SCHEDULERS) if kills is None else WITH_KILLS)
    chosen = {name: text for name, text in SCHEDULERS.items() if name in only}
    measured = {
        task: _measure(path, chosen, conditions, processes=processes)
        for task, path in TASKS.items()
    }
    if write:
        begin, end = (BEGIN, END) if kills is None else (BEGIN_KILLED, END_KILLED)
        _write(_markdown(measured, conditions), begin=begin, end=end)
    if as_json:
        output.show_json({"conditions": conditions, "tasks": _as_json(measured)})
    else:
        tables = [_table(task, of_task) for task, of_task in measured.items()]
        output.show_tables(*tables, note="Intervals of 95 % by bootstrap.", conditions=conditions)
    _refuse_epochs_after_decisions(measured)


@dataclass(frozen=True)
class Score:
    """
    The searches of one scheduler.

    Attributes:
        mean: The mean of the searches' best errors.
        less: How much lower the mean is than that of random search with the same orders; None if
            random search was not measured.
        interval, interval_of_less: The 95 % intervals of `mean` and `less` by bootstrap over the
            orders.
        n_trials, n_complete: Means per search: the trials, and those trained for 27 epochs.
        n_after_decision, n_kills: Sums over all searches; see `Found`.
        simulated: The `mean` of simulated searches with the same orders; None if the searches are
            themselves simulated.
    """

    mean: float
    interval: tuple[float, float]
    less: float | None
    interval_of_less: tuple[float, float] | None
    n_trials: float
    n_complete: float
    n_after_decision: int
    n_kills: int
    simulated: float | None


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
            call = partial(_search, path, text, conditions)
            found[name] = run(call, range(conditions["orders"]))
            mean = statistics.fmean(each.best for each in found[name])
            click.echo(f"{path.stem}: {name}: {mean:.4f}", err=True)
    return {name: _score(of, found.get(RANDOM)) for name, of in found.items()}


class _mapped:  # noqa: N801  used as a function
    """Yields a `map` that works in this process, or in several processes."""

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


def _search(path: Path, text: str, conditions: Mapping[str, int], seed: int) -> Found:
    """Search with simulated workers; with --kills, search with real workers, too."""
    scheduler, recorded = known.from_call(parse_call(text)), _curves(path)
    workers, epochs = conditions["workers"], conditions["epochs"]
    simulated = studydb.simulate(
        scheduler, None, recorded, workers=workers, seed=seed, max_steps=epochs, step_s=1.0
    )
    if simulated.best_value is None:
        raise click.ClickException(f"{text} trained no trial for {MAX_T} epochs: raise --epochs.")
    if "kills" in conditions:
        curves = [recorded.curves[index].values for index in simulation.order(recorded, seed)]
        found = killed_workers.search(
            curves, scheduler, workers=workers, epochs=epochs, seed=seed, kills=conditions["kills"]
        )
        return replace(found, simulated=simulated.best_value)
    return Found(
        simulated.best_value,
        len(simulated.trials),
        len(simulated.completions),
        simulated.n_steps,
        simulated.n_after_decision,
    )


def _refuse_epochs_after_decisions(measured: Mapping[str, Scores]) -> None:
    late = [
        f"{score.n_after_decision} under {name} ({task})"
        for task, scores in measured.items()
        for name, score in scores.items()
        if score.n_after_decision
    ]
    if late:
        raise click.ClickException(
            f"Epochs were trained after the decision to end or pause their trial: "
            f"{', '.join(late)}."
        )


def _score(found: Sequence[Found], by_random: Sequence[Found] | None) -> Score:
    best = [each.best for each in found]
    simulated = [each.simulated for each in found if each.simulated is not None]
    less = by_random and [a.best - b.best for a, b in zip(by_random, found, strict=True)]
    return Score(
        mean=statistics.fmean(best),
        interval=_interval(best),
        less=statistics.fmean(less) if less else None,
        interval_of_less=_interval(less) if less else None,
        n_trials=statistics.fmean(each.n_trials for each in found),
        n_complete=statistics.fmean(each.n_complete for each in found),
        n_after_decision=sum(each.n_after_decision for each in found),
        n_kills=sum(each.n_kills for each in found),
        simulated=statistics.fmean(simulated) if simulated else None,
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the percentiles 2.5 and 97.5 of the means of bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 40], means[-RESAMPLES // 40 - 1]


# --- what is printed

HEADINGS = ("", "mean best error", "less than at random", "trials", "complete", "after decision")
SIMULATED = "simulated"


def _headings(scores: Scores) -> tuple[str, ...]:
    by_real_workers = any(score.simulated is not None for score in scores.values())
    return (*HEADINGS, SIMULATED) if by_real_workers else HEADINGS


def _cells(scores: Scores) -> Iterator[tuple[str, ...]]:
    """Yield a row of cells for each scheduler, under `_headings`."""
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
            str(score.n_after_decision),
            *([] if score.simulated is None else [f"{score.simulated:.4f}"]),
        )


def _width(interval: tuple[float, float]) -> str:
    return f"± {(interval[1] - interval[0]) / 2:.4f}"


def _table(task: str, scores: Scores) -> Table:
    table = output.table(*_headings(scores), title=task)
    for cells in _cells(scores):
        table.add_row(*cells)
    return table


def _as_json(measured: Mapping[str, Scores]) -> dict[str, Any]:
    return {
        task: {name: score.__dict__ for name, score in scores.items()}
        for task, scores in measured.items()
    }


def _markdown(measured: Mapping[str, Scores], conditions: Mapping[str, int]) -> str:
    kind, killed = "simulated workers", ""
    if "kills" in conditions:
        n_kills = sum(score.n_kills for scores in measured.values() for score in scores.values())
        kind, killed = "worker processes", f"{n_kills} workers killed by SIGKILL, "
    described = (
        f"{conditions['workers']} {kind}, {conditions['epochs']} epochs, {killed}"
        f"{conditions['orders']} orders of the curves, intervals of 95 % by bootstrap."
    )
    parts = [described]
    for task, scores in measured.items():
        rows = [f"| {' | '.join(cells)} |" for cells in _cells(scores)]
        headings = _headings(scores)
        head = f"| {task} | {' | '.join(headings[1:])} |"
        parts.append("\n".join([head, "|---" * len(headings) + "|", *rows]))
    return "\n\n".join(parts)


def _write(tables: str, *, begin: str, end: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise click.ClickException(
            f"{PAGE} has no line {begin!r} followed by {end!r}: add both where the tables belong."
        )
    PAGE.write_text(f"{before}{begin}\n\n{tables}\n\n{end}{after}", encoding="utf-8")
