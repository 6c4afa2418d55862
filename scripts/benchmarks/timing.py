"""Single calls, timed one by one in places that take turns; what each place is to the first."""

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
"""PostgreSQL plans a prepared statement anew for its first five values."""

MS = 1e3


def _nothing(_: object = None) -> None:
    pass


@dataclass(frozen=True)
class Deed:
    """
    A call that is timed, between two that are not.

    Attributes:
        call: Takes what `before` returned.
        after: Takes what `call` returned.
    """

    call: Callable[[Any], Any]
    before: Callable[[], Any] = _nothing
    after: Callable[[Any], Any] = _nothing

    def time_s(self) -> float:
        """Do it once."""
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
        slices: By deed and place, the mean of each slice in milliseconds.
        place: The one that the others are held against.
    """

    slices: Mapping[str, Mapping[str, Sequence[float]]]
    place: str
    conditions: Mapping[str, Any]

    def median(self, deed: str, place: str) -> float:
        """The median over the slices, in milliseconds."""
        return statistics.median(self.slices[deed][place])

    def ratios(self, deed: str) -> dict[str, float]:
        """How many times as long each place takes as the one that it is held against."""
        least = self.median(deed, self.place)
        return {
            place: self.median(deed, place) / least
            for place in self.slices[deed]
            if place != self.place
        }


def take_turns(
    places: Mapping[str, Mapping[str, Deed]], *, rounds: int, calls: int
) -> dict[str, dict[str, list[float]]]:
    """
    Time each deed in slices of so many calls, in all places by turns, call by call.

    A core that idles wakes slowly, for some hundred calls and then not: a slice of one place alone
    took 0.14 or 0.38 ms of the same work.

    Args:
        places: Their deeds; all have the same.

    Returns:
        By deed and place, the mean of each slice in milliseconds.
    """
    names = list(places)
    deeds = list(places[names[0]])
    for deed in deeds:
        _slices_ms({place: places[place][deed] for place in names}, min(calls, WARM_UP_CALLS))
    slices: dict[str, dict[str, list[float]]] = {
        deed: {place: [] for place in names} for deed in deeds
    }
    for number in range(rounds):
        first = number % len(names)
        for deed in deeds:
            turns = {place: places[place][deed] for place in names[first:] + names[:first]}
            for place, took_ms in _slices_ms(turns, calls).items():
                slices[deed][place].append(took_ms)
    return slices


def _slices_ms(turns: Mapping[str, Deed], calls: int) -> dict[str, float]:
    times_s: dict[str, list[float]] = {place: [] for place in turns}
    for _ in range(calls):
        for place, deed in turns.items():
            times_s[place].append(deed.time_s())
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
        "deeds": {
            deed: {
                "median": {place: timings.median(deed, place) for place in slices},
                "slices": slices,
                "ratios": timings.ratios(deed),
            }
            for deed, slices in timings.slices.items()
        },
    }


def _table(timings: Timings) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("ms")
    rivals = list(dict.fromkeys(name for deed in timings.slices for name in timings.ratios(deed)))
    table.add_column(timings.place, justify="right")
    for rival in rivals:
        table.add_column(rival, justify="right")
        table.add_column("x", justify="right")
    for deed in timings.slices:
        cells = [f"{timings.median(deed, timings.place):,.2f}"]
        for rival, ratio in timings.ratios(deed).items():
            cells += [f"{timings.median(deed, rival):,.2f}", f"{ratio:.2f} x"]
        table.add_row(deed, *cells)
    return table
