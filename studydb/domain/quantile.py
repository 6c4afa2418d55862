"""
An exact order statistic that moves by neighbours: what a rung row keeps.

Entries are ordered from the worst (rank 0) to the best: by falling score, then falling trial id.
The cut stands on the lower neighbour of the quantile; every insertion moves it by one place at
most, so a decision costs the same among ten entries and among a million.

Rule: numpy's linear percentile, on the negated scores that Ray Tune's ASHA ranks (a reward is minus
    a
score), with the same floating-point steps, so that ties and last digits decide as they do there.
"""

import math
from dataclasses import dataclass

Entry = tuple[float, int]
"""Score and trial id: a larger pair is a worse entry."""


@dataclass(frozen=True, slots=True)
class Cut:
    """
    Where the quantile stands among `n` ranked entries.

    Attributes:
        rank: Of `entry`, counted from the worst.
        entry: The lower neighbour of the quantile; None while there are no entries.
    """

    n: int = 0
    rank: int = 0
    entry: Entry | None = None


def cutoff(cut: Cut, better: Entry | None, quantile: float) -> float | None:
    """
    The interpolated quantile as a score: strictly worse ones are cut.

    Args:
        better: The entry one rank above the cut's, None if the cut stands on the best.
        quantile: In [0, 1], of the negated scores.

    Returns:
        None without entries; NaN where infinities leave it undefined, as numpy does.
    """
    if cut.entry is None:
        return None
    lower = -cut.entry[0]
    upper = lower if better is None else -better[0]
    gamma = (cut.n - 1) * quantile - cut.rank
    return -_lerp(lower, upper, gamma)


def _lerp(lower: float, upper: float, gamma: float) -> float:
    difference = upper - lower
    if gamma >= 0.5:  # noqa: PLR2004  numpy's switch, to be exact at both ends
        return upper - difference * (1 - gamma)
    return lower + difference * gamma


def insert(
    cut: Cut, entry: Entry, *, worse: Entry | None, better: Entry | None, quantile: float
) -> Cut:
    """
    The cut after one more ranked entry.

    Args:
        worse, better: The cut's neighbours before the insertion, None at the ends.
    """
    if cut.entry is None:
        return Cut(n=1, rank=0, entry=entry)
    n, rank, place = cut.n + 1, cut.rank, cut.entry
    if entry > place:
        rank += 1
        worse = entry if worse is None else min(entry, worse)
    else:
        better = entry if better is None else max(entry, better)
    wanted = math.floor((n - 1) * quantile)
    if rank > wanted and worse is not None:
        rank, place = rank - 1, worse
    elif rank < wanted and better is not None:
        rank, place = rank + 1, better
    return Cut(n=n, rank=rank, entry=place)
