"""Minimum, maximum, average and last value of each metric, over any number of results."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from studydb.domain.metrics import Result, is_double

Analysis = dict[str, dict[str, float]]
"""
For each metric, by name: min, max, avg and last, or only last if all values are NaN. Stored in the
column `trial.metric_summary`.
"""

KEPT_NUMBERS = 10_000
"""When more numbers than this are in memory, they are added to sums and dropped."""

_SCALE_BITS = 64
"""The sum of fewer than 2**64 doubles, each divided by 2**64, does not overflow."""


@dataclass(slots=True)
class _Sum:
    """
    Minimum, maximum, sum and last value of one metric, over values that are no longer in memory.

    Attributes:
        n: The number of values that are not NaN; `smallest` and `largest` are among these.
        parts: Doubles whose exact sum is the sum of the values divided by 2**scaled_bits; no longer
            updated after an infinite value.
        finite: Whether all n values are finite.
        last: The last value, which may be NaN.
    """

    n: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    parts: list[float] = field(default_factory=list)
    scaled_bits: int = 0
    finite: bool = True
    last: float = math.nan

    def add(self, values: Sequence[float]) -> None:
        numbers = [value for value in values if not math.isnan(value)]
        if numbers:
            self.n += len(numbers)
            self.smallest, self.largest = min(self.smallest, *numbers), max(self.largest, *numbers)
            self.finite = self.finite and all(map(math.isfinite, numbers))
        if self.finite:
            self._sum_up(numbers)
        self.last = values[-1]

    def _sum_up(self, numbers: list[float]) -> None:
        try:
            self.parts = _parts([*self.parts, *_scaled(numbers, self.scaled_bits)])
        except OverflowError:
            parts = _scaled(self.parts, _SCALE_BITS)
            self.scaled_bits = _SCALE_BITS
            self.parts = _parts([*parts, *_scaled(numbers, _SCALE_BITS)])

    def analysis(self) -> dict[str, float]:
        last = {"last": self.last}
        if self.n == 0:
            return last
        average = math.nan
        if self.finite:
            average = math.fsum(self.parts) / self.n
            if self.scaled_bits:  # the rounded average must not exceed the largest double
                smallest, largest = _scaled([self.smallest, self.largest], self.scaled_bits)
                average = math.ldexp(min(max(average, smallest), largest), self.scaled_bits)
        return {"min": self.smallest, "max": self.largest, "avg": average} | last


def _scaled(numbers: list[float], bits: int) -> list[float]:
    return [math.ldexp(number, -bits) for number in numbers] if bits else numbers


def _parts(numbers: list[float]) -> list[float]:
    """
    Return a short list with exactly the same sum: the rounded sum, its rounding error, and so on.

    The list `numbers` is changed.

    Raises:
        OverflowError: The sum, or a partial sum, is larger than the largest double.
    """
    parts: list[float] = []
    while part := math.fsum(numbers):
        parts.append(part)
        numbers.append(-part)
    return parts


class Tally:
    """
    Minimum, maximum, average and last value of every numeric metric over a trial's live results.

    The sum is exact, so that the average does not depend on how results are divided into batches.
    NaN counts only for `last`.
    """

    __slots__ = ("_kept", "_metric", "_n_numbers", "_sums", "n_results")

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._kept: list[Result] = []
        self._n_numbers = 0
        self._sums: dict[str, _Sum] = {}
        self.n_results = 0

    def add(self, results: Iterable[Result]) -> Self:
        for result in results:
            numbers = result.numbers() if result.metrics else result
            self._kept.append(numbers)
            self._n_numbers += 1 + len(numbers.metrics)
            self.n_results += 1
        if self._n_numbers > KEPT_NUMBERS:
            for name, values in self._series(()).items():
                self._sums.setdefault(name, _Sum()).add(values)
            self._kept, self._n_numbers = [], 0
        return self

    def analysis(self, more: Iterable[Result] = ()) -> Analysis:
        """Summarise the added results and the later results `more`, without adding `more`."""
        series = self._series(more)
        found = {name: known.analysis() for name, known in self._sums.items() if name not in series}
        for name, values in series.items():
            known = self._sums.get(name)
            found[name] = _analysis_of(values) if known is None else _plus(known, values).analysis()
        return found

    def _series(self, more: Iterable[Result]) -> dict[str, list[float]]:
        series: dict[str, list[float]] = {}
        for result in (*self._kept, *more):
            for name, value in result.metrics.items():
                if is_double(value):
                    series.setdefault(name, []).append(float(value))
            series.setdefault(self._metric, []).append(result.value)
        return series


def _analysis_of(values: Sequence[float]) -> dict[str, float]:
    """Compute the analysis of values that are all in memory, at a third of the cost of `_Sum`."""
    numbers = [value for value in values if not math.isnan(value)]
    try:
        total = math.fsum(numbers)
    except (OverflowError, ValueError):  # the sum overflows, or contains both +Inf and -Inf
        return _plus(_Sum(), values).analysis()
    if not numbers:
        return {"last": values[-1]}
    average = total / len(numbers) if math.isfinite(total) else math.nan
    return {"min": min(numbers), "max": max(numbers), "avg": average, "last": values[-1]}


def _plus(known: _Sum, values: Sequence[float]) -> _Sum:
    total = replace(known)
    total.add(values)
    return total
