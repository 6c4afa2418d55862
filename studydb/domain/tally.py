"""Tallies: min, max, average and last of each metric, over more results than memory holds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from studydb.domain.metrics import Result, is_double

Analysis = dict[str, dict[str, float]]
"""What `trial.metric_summary` holds: min, max, avg and last by the metric's name."""

KEPT_NUMBERS = 10_000
"""So many numbers are kept as they came; with more, each metric's are summed up."""

_SCALE_BITS = 64
"""Fewer than 2**64 doubles, each divided by 2**64, have a sum that is a double."""


@dataclass(slots=True)
class _Sum:
    """
    What is known of the earlier values of one metric.

    Attributes:
        n: How many are not NaN; `least` and `most` are of these.
        parts: Doubles whose exact sum is that of the finite values, divided by 2**scaled_bits.
        finite: Whether all of them are finite.
        last: The last one, which may be NaN.
    """

    n: int
    least: float
    most: float
    parts: list[float]
    scaled_bits: int
    finite: bool
    last: float

    def add(self, values: Sequence[float]) -> None:
        """Count more values."""
        numbers = [value for value in values if not math.isnan(value)]
        if numbers:
            self.n += len(numbers)
            self.least, self.most = min(self.least, *numbers), max(self.most, *numbers)
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
        """As `trial.metric_summary` holds it."""
        last = {"last": self.last}
        if self.n == 0:
            return last
        average = math.nan
        if self.finite:
            average = math.fsum(self.parts) / self.n
            if self.scaled_bits:  # rounding must not make it more than a double holds
                least, most = _scaled([self.least, self.most], self.scaled_bits)
                average = math.ldexp(min(max(average, least), most), self.scaled_bits)
        return {"min": self.least, "max": self.most, "avg": average} | last


def _nothing() -> _Sum:
    return _Sum(0, math.inf, -math.inf, [], 0, finite=True, last=math.nan)


def _scaled(numbers: list[float], bits: int) -> list[float]:
    return [math.ldexp(number, -bits) for number in numbers] if bits else numbers


def _parts(numbers: list[float]) -> list[float]:
    """
    A few doubles with exactly the same sum: rounded, the error of that, the error of this.

    Raises:
        OverflowError: The sum, or one on the way to it, is more than a double holds.
    """
    parts: list[float] = []
    while part := math.fsum(numbers):
        parts.append(part)
        numbers.append(-part)
    return parts


class Tally:
    """
    Min, max, average and last of every numeric metric over a trial's live results.

    The average is exact: the same, however the results are divided into batches. NaN counts for
    `last` alone.
    """

    __slots__ = ("_kept", "_metric", "_n_numbers", "_sums", "n_results")

    def __init__(self, metric: str) -> None:
        """
        Begin without results.

        Args:
            metric: The study's, whose values are counted with the others.
        """
        self._metric = metric
        self._kept: list[Result] = []
        self._n_numbers = 0
        self._sums: dict[str, _Sum] = {}
        self.n_results = 0

    def add(self, results: Iterable[Result]) -> Self:
        """Count more results, of later steps."""
        for result in results:
            numbers = result.numbers() if result.metrics else result
            self._kept.append(numbers)
            self._n_numbers += 1 + len(numbers.metrics)
            self.n_results += 1
        if self._n_numbers > KEPT_NUMBERS:
            for name, values in self._series(()).items():
                self._sums.setdefault(name, _nothing()).add(values)
            self._kept, self._n_numbers = [], 0
        return self

    def analysis(self, more: Iterable[Result] = ()) -> Analysis:
        """
        Sum up what was counted.

        Args:
            more: Results to count, too, this time only.
        """
        series = self._series(more)
        found = {name: known.analysis() for name, known in self._sums.items() if name not in series}
        for name, values in series.items():
            known = self._sums.get(name)
            found[name] = _analysis_of(values) if known is None else _plus(known, values).analysis()
        return found

    def _series(self, more: Iterable[Result]) -> dict[str, list[float]]:
        series: dict[str, list[float]] = {}
        for result in (*self._kept, *more):
            for name, value in (*result.metrics.items(), (self._metric, result.value)):
                if is_double(value):
                    series.setdefault(name, []).append(float(value))
        return series


def _analysis_of(values: Sequence[float]) -> dict[str, float]:
    """What `_Sum` says of values that are all here, at a third of its cost."""
    numbers = [value for value in values if not math.isnan(value)]
    try:
        total = math.fsum(numbers)
    except (OverflowError, ValueError):  # of the largest doubles, of both infinities
        return _plus(_nothing(), values).analysis()
    if not numbers:
        return {"last": values[-1]}
    average = total / len(numbers) if math.isfinite(total) else math.nan
    return {"min": min(numbers), "max": max(numbers), "avg": average, "last": values[-1]}


def _plus(known: _Sum, values: Sequence[float]) -> _Sum:
    total = _Sum(
        known.n,
        known.least,
        known.most,
        known.parts,
        known.scaled_bits,
        finite=known.finite,
        last=known.last,
    )
    total.add(values)
    return total
