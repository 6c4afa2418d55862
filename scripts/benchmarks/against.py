"""Compare the speeds of the working tree and of a commit, which are measured in turns."""

import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
from click.core import ParameterSource
from own_environment import ROOT
from rich.table import Table

from benchmarks import output, places, version
from benchmarks.options import Turns

ROUNDS, PROCESSES = 9, (1, 8)
WARM_UP_S = 0.5
LEAST_RATIO = 0.95
CONFIDENCE = 0.95
RESAMPLES = 10_000
NOTE = (
    "Medians of slices that took turns, their ratio, and the ratio's bootstrap interval. A row is "
    f'"slower" if the ratio is below {LEAST_RATIO} and the interval does not include 1.'
)


@dataclass(frozen=True)
class Subject:
    """
    What `compare` measures. The working tree and the commit must both have `build` and `fill`.

    Attributes:
        contenders: The contenders of `build` that run studydb; no others are measured.
        build: The function that becomes `Plan.build` (see teams.py), as "module:function".
        options: Returns `Plan.options` for a database's URL.
        fill: A function, as "module:function", to call with the URL and `fill_options` before each
            warm-up and each slice; None to call nothing.
    """

    unit: str
    contenders: Sequence[str]
    build: str
    options: Callable[[str], Mapping[str, Any]]
    fill: str | None = None
    fill_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """
    The slices of one contender, measured with one number of processes.

    Attributes:
        new: Units per second of the working tree in each round.
        old: Units per second of the commit in each round.
    """

    processes: int
    contender: str
    new: Sequence[float]
    old: Sequence[float]

    @property
    def ratio(self) -> float:
        """The working tree's speed divided by the commit's: a ratio of medians."""
        return statistics.median(self.new) / statistics.median(self.old)

    def interval(self) -> tuple[float, float]:
        """The ratio's confidence interval, by a bootstrap that draws whole rounds, not slices."""
        drawn = np.random.default_rng(0).integers(len(self.new), size=(RESAMPLES, len(self.new)))
        ratios = np.median(np.array(self.new)[drawn], 1) / np.median(np.array(self.old)[drawn], 1)
        low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    def is_slower(self) -> bool:
        """Whether the ratio is below 0.95, and the interval does not include 1."""
        low, high = self.interval()
        return self.ratio < LEAST_RATIO and not low <= 1.0 <= high


def compare(subject: Subject, commit: str, turns: Turns, *, storage: str = "postgresql") -> None:
    """
    Measure the working tree and a commit in turns, and show the ratio of their speeds.

    By default there are nine rounds, with one process and with eight.

    Raises:
        SystemExit: The working tree is slower (see `Comparison.is_slower`); the exit code is 1.
    """
    rounds, sizes = given("rounds", ROUNDS), given("processes", PROCESSES)
    with ExitStack() as stack:
        old_checkout = stack.enter_context(checkout_of(commit))
        urls, conditions = stack.enter_context(_databases(storage, fsync=turns.fsync))
        new = stack.enter_context(_Process(ROOT, "the working tree", subject, urls[0]))
        old = stack.enter_context(_Process(old_checkout, commit, subject, urls[1]))
        found = [
            comparison
            for size in sizes
            for comparison in _measure(
                subject, new, old, size, rounds=rounds, seconds=turns.seconds
            )
        ]
    conditions |= {"rounds": rounds, "seconds": turns.seconds, "against": commit}
    show(subject.unit, found, conditions, as_json=turns.as_json)


def given(name: str, otherwise: Any) -> Any:
    """The value of an option, or `otherwise` if the command line does not have the option."""
    context = click.get_current_context()
    is_default = context.get_parameter_source(name) is ParameterSource.DEFAULT
    return otherwise if is_default else context.params[name]


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the files of a commit."""
    git = ["git", "-C", str(ROOT), "archive", f"{commit}^{{commit}}"]
    try:
        archived = subprocess.run(git, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error).encode()
        raise click.UsageError(
            f"git cannot read commit {commit!r} of this checkout: {reason.decode(errors='replace')}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="studydb-against-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


@contextmanager
def _databases(storage: str, *, fsync: bool) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the URLs of two empty databases, and the conditions that are shown with the figures."""
    if storage == "sqlite":
        with places.folder() as folder:
            yield [f"sqlite:///{folder}/{name}.db" for name in ("new", "old")], {"storage": storage}
        return
    with (
        places.postgresql_server(fsync=fsync) as server,
        places.databases(server, "new", "old") as urls,
    ):
        yield [*urls.values()], {"storage": storage, **places.conditions(server)}


class _Process:
    """A process that measures the working tree or the commit; see version.py."""

    def __init__(self, checkout: Path, name: str, subject: Subject, url: str) -> None:
        self._name = name
        arguments = {
            "url": url,
            "build": subject.build,
            "options": subject.options(url),
            "fill": subject.fill,
            "fill_options": subject.fill_options,
        }
        self._process = subprocess.Popen(
            [sys.executable, version.__file__, checkout, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and the processes that it has started."""
        self._process.communicate()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the method `name` of the `Version` in the process; return the method's answer."""
        assert self._process.stdin is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "The measuring process ended."}
        if "error" in answer:
            raise click.ClickException(
                f"The benchmark of {self._name} has failed. {answer['error']}"
            )
        return answer["answer"]


def _measure(
    subject: Subject, new: _Process, old: _Process, size: int, *, rounds: int, seconds: float
) -> list[Comparison]:
    for process in (new, old):
        process.call("start", size)
        for contender in subject.contenders:
            process.call("run", contender, min(seconds, WARM_UP_S))
    found = [Comparison(size, contender, [], []) for contender in subject.contenders]
    for number in range(rounds):
        for comparison in found:
            turns = [(new, comparison.new), (old, comparison.old)]
            for process, rates in turns if number % 2 else reversed(turns):
                rates.append(process.call("run", comparison.contender, seconds))
    click.echo(f"Measured with {size} process(es).", err=True)
    return found


def show(
    unit: str, found: Sequence[Comparison], conditions: Mapping[str, Any], *, as_json: bool
) -> None:
    """
    Print the comparisons as a table, or as JSON with every slice.

    Raises:
        SystemExit: The working tree is slower in at least one comparison; the exit code is 1.
    """
    if as_json:
        rows = [_as_json(comparison) for comparison in found]
        output.show_json({"unit": unit, "conditions": conditions, "comparisons": rows})
    else:
        table = _table(unit, found, str(conditions["against"]))
        output.show_tables(table, note=NOTE, conditions=conditions)
    if any(comparison.is_slower() for comparison in found):
        raise SystemExit(1)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "processes": comparison.processes,
        "contender": comparison.contender,
        "new": list(comparison.new),
        "old": list(comparison.old),
        "ratio": comparison.ratio,
        "interval": comparison.interval(),
        "slower": comparison.is_slower(),
    }


def _table(unit: str, found: Sequence[Comparison], commit: str) -> Table:
    table = output.table(*(unit, "processes", "this tree", commit, "ratio", "95 % interval", ""))
    for comparison in found:
        low, high = comparison.interval()
        table.add_row(
            comparison.contender,
            str(comparison.processes),
            f"{statistics.median(comparison.new):,.4g}",
            f"{statistics.median(comparison.old):,.4g}",
            f"{comparison.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            "slower" if comparison.is_slower() else "",
        )
    return table
