"""Single calls in several places by turns, and each place's time relative to the first."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WARM_UP_CALLS = 10
"""PostgreSQL plans a prepared statement again for each of its first five calls."""

MS = 1e3


def _nothing(_: object = None) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """
    A timed call, between two that are not timed.

    Attributes:
        call: Receives the result of `before`.
        after: Receives the result of `call`.
    """

    call: Callable[[Any], Any]
    before: Callable[[], Any] = _nothing
    after: Callable[[Any], Any] = _nothing

    def time_s(self) -> float:
        """Run one call."""
        given = self.before()
        began_s = time.perf_counter()
        made = self.call(given)
        took_s = time.perf_counter() - began_s
        self.after(made)
        return took_s


@dataclass(frozen=True)
class Timings:
    """
    How long calls took.

    Attributes:
        slices: By operation and place, the mean of each slice in milliseconds.
        place: The place that the others are compared with.
    """

    slices: Mapping[str, Mapping[str, Sequence[float]]]
    place: str
    conditions: Mapping[str, Any]

    def median(self, operation: str, place: str) -> float:
        """The median over the slices, in milliseconds."""
        return statistics.median(self.slices[operation][place])

    def ratios(self, operation: str) -> dict[str, float]:
        """The time of each place divided by that of the place that it is compared with."""
        least = self.median(operation, self.place)
        return {
            place: self.median(operation, place) / least
            for place in self.slices[operation]
            if place != self.place
        }


def take_turns(
    places: Mapping[str, Mapping[str, Operation]], *, rounds: int, calls: int
) -> dict[str, dict[str, list[float]]]:
    """
    Time each operation in slices of so many calls, in all places by turns, call by call.

    An idle core wakes slowly for some hundred calls: when each slice measured one place, the same
    work took 0.14 or 0.38 ms.

    Args:
        places: The operations of each place; all places have the same names.

    Returns:
        By operation and place, the mean of each slice in milliseconds.
    """
    names = list(places)
    operations = list(places[names[0]])
    for operation in operations:
        _slices_ms({place: places[place][operation] for place in names}, min(calls, WARM_UP_CALLS))
    slices: dict[str, dict[str, list[float]]] = {
        operation: {place: [] for place in names} for operation in operations
    }
    for number in range(rounds):
        first = number % len(names)
        for operation in operations:
            turns = {place: places[place][operation] for place in names[first:] + names[:first]}
            for place, took_ms in _slices_ms(turns, calls).items():
                slices[operation][place].append(took_ms)
    return slices


def _slices_ms(turns: Mapping[str, Operation], calls: int) -> dict[str, float]:
    times_s: dict[str, list[float]] = {place: [] for place in turns}
    for _ in range(calls):
        for place, operation in turns.items():
            times_s[place].append(operation.time_s())
    return {place: statistics.fmean(times) * MS for place, times in times_s.items()}


def show(timings: Timings, *, as_json: bool) -> None:
    """Print timings, for people or for programs."""
    if as_json:
        click.echo(json.dumps(_as_json(timings), indent=2))
        return
    console = Console()
    console.print(_table(timings))
    described = ", ".join(f"{name} {value}" for name, value in timings.conditions.items())
    console.print(f"Medians of slices that took turns. {described}", style="dim")


def _as_json(timings: Timings) -> dict[str, Any]:
    return {
        "unit": "ms a call",
        "conditions": dict(timings.conditions),
        "operations": {
            operation: {
                "median": {place: timings.median(operation, place) for place in slices},
                "slices": slices,
                "ratios": timings.ratios(operation),
            }
            for operation, slices in timings.slices.items()
        },
    }


def _table(timings: Timings) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("ms")
    baselines = list(
        dict.fromkeys(name for operation in timings.slices for name in timings.ratios(operation))
    )
    table.add_column(timings.place, justify="right")
    for baseline in baselines:
        table.add_column(baseline, justify="right")
        table.add_column("x", justify="right")
    for operation in timings.slices:
        cells = [f"{timings.median(operation, timings.place):,.2f}"]
        for baseline, ratio in timings.ratios(operation).items():
            cells += [f"{timings.median(operation, baseline):,.2f}", f"{ratio:.2f} x"]
        table.add_row(operation, *cells)
    return table
