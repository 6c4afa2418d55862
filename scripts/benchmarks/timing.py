"""Times of single calls in several databases ("places"), which take turns call by call."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks import output
from benchmarks.rounds import in_turn

WARM_UP_CALLS = 10
"""
How many calls come first and do not count. PostgreSQL plans a prepared statement anew in each of
its first five calls.
"""

MS = 1e3


def _nothing(_: object = None) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """
    A timed call, and calls before and after it that are not timed.

    Attributes:
        call: Receives the result of `before`.
        after: Receives the result of `call`.
    """

    call: Callable[[Any], Any]
    before: Callable[[], Any] = _nothing
    after: Callable[[Any], Any] = _nothing

    def time_s(self) -> float:
        """Run the three calls; return the seconds of `call`."""
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
        slices: By operation and place, the mean time of a call in each slice, in milliseconds. In
            the benchmark `frames` a place is a contender, and a slice is one call.
        baseline: The place with which the other places are compared.
    """

    slices: Mapping[str, Mapping[str, Sequence[float]]]
    baseline: str
    conditions: Mapping[str, Any]

    def median(self, operation: str, place: str) -> float:
        return statistics.median(self.slices[operation][place])

    def ratios(self, operation: str) -> dict[str, float]:
        """The median of each place except the baseline, divided by the median of the baseline."""
        baseline_ms = self.median(operation, self.baseline)
        return {
            place: self.median(operation, place) / baseline_ms
            for place in self.slices[operation]
            if place != self.baseline
        }


def take_turns(
    places: Mapping[str, Mapping[str, Operation]], *, rounds: int, calls: int
) -> dict[str, dict[str, list[float]]]:
    """
    Time each operation in `rounds` slices. In a slice, each place makes `calls` calls.

    The places take turns call by call. So the calls of all places run on equally warm cores: a core
    that was idle is slow for its first few hundred calls. When a slice had the calls of only one
    place, the same call took 0.14 ms in one slice and 0.38 ms in another.

    Args:
        places: The operations of each place, by name; the names are the same in all places.

    Returns:
        By operation and place, the mean time of a call in each slice, in milliseconds.
    """
    names = list(places)
    operations = list(places[names[0]])
    for operation in operations:
        _slices_ms({place: places[place][operation] for place in names}, min(calls, WARM_UP_CALLS))
    slices: dict[str, dict[str, list[float]]] = {
        operation: {place: [] for place in names} for operation in operations
    }
    for number in range(rounds):
        for operation in operations:
            turns = {place: places[place][operation] for place in in_turn(names, number)}
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
    if as_json:
        output.show_json(_as_json(timings))
        return
    note = "Medians of slices; the columns took turns call by call."
    output.show_tables(_table(timings), note=note, conditions=timings.conditions)


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
    ratios = {operation: timings.ratios(operation) for operation in timings.slices}
    others = dict.fromkeys(place for of_operation in ratios.values() for place in of_operation)
    headings = [heading for place in others for heading in (place, "x")]
    table = output.table("ms", timings.baseline, *headings)
    for operation, of_operation in ratios.items():
        cells = [f"{timings.median(operation, timings.baseline):,.2f}"]
        for place, ratio in of_operation.items():
            cells += [f"{timings.median(operation, place):,.2f}", f"{ratio:.2f} x"]
        table.add_row(operation, *cells)
    return table
