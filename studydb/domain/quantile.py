"""
The exact quantile of a rung's entries, updated at each insertion.

Entries are ordered from the worst (rank 0) to the best: by falling score, then by falling trial id.
The quantile lies between two entries; the cut is the worse of the two. An insertion moves the cut
by one entry at most, so that a decision costs the same among ten entries and among a million.

Source: numpy's linear percentile. Scores are negated, because Ray Tune's ASHA ranks rewards. The
floating-point operations are numpy's, so that ties and last digits are decided as in Ray Tune.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

_ROUNDING = 1e-9

Position = tuple[float, int]
"""Score and trial id; a larger pair is worse."""


class Cut(Struct, frozen=True):
    """
    The cut of a rung with `n` entries: the entry at the rank floor((n - 1) * quantile).

    Attributes:
        rank: The 0-based rank of `entry`, counted from the worst entry.
        entry: None while there are no entries.
    """

    n: int = 0
    rank: int = 0
    entry: Position | None = None


def cutoff(cut: Cut, better: Position | None, quantile: float) -> float | None:
    """
    Interpolate the quantile as a score.

    In ASHA by stopping with the rule "ray", a trial with a strictly worse score stops.

    Args:
        better: The next better entry after the cut's entry; None if there is none.
        quantile: The quantile of the negated scores, in [0, 1].

    Returns:
        The score; None without entries; NaN if infinite scores leave the quantile undefined.
    """
    if cut.entry is None:
        return None
    lower = -cut.entry[0]
    upper = lower if better is None else -better[0]
    gamma = (cut.n - 1) * quantile - cut.rank
    return -_lerp(lower, upper, gamma)


def near(cut: Cut, *, worse: Position | None, better: Position | None) -> dict[int, float]:
    """
    Return the scores of the cut's entry and of its neighbours, by rank; here rank 0 is the best.

    Args:
        worse, better: The neighbours of the cut's entry; None for a neighbour that does not exist.
    """
    place = cut.n - 1 - cut.rank
    found = {place - 1: better, place: cut.entry, place + 1: worse}
    return {rank: entry[0] for rank, entry in found.items() if entry is not None}


def exact_cutoff(cut: Cut, better: float | None, quantile: float) -> float | None:
    """
    Interpolate the quantile as `cutoff` does, but without the effects of rounding.

    If only rounding moves the quantile off an entry, the cutoff is that entry's score. Between an
    infinite score and another score, the cutoff is the better score of the two.

    Args:
        better: The score of the next better entry; None if the cut's entry is the best.
    """
    if cut.entry is None or better is None:
        return None if cut.entry is None else cut.entry[0]
    gamma = (cut.n - 1) * quantile - cut.rank
    if abs(gamma) < _ROUNDING:
        return cut.entry[0]
    if gamma > 1 - _ROUNDING or math.isinf(cut.entry[0]) or math.isinf(better):
        return better
    return -_lerp(-cut.entry[0], -better, gamma)


def _lerp(lower: float, upper: float, gamma: float) -> float:
    difference = upper - lower
    if gamma >= 0.5:  # noqa: PLR2004  as numpy does, to be exact at both ends
        return upper - difference * (1 - gamma)
    return lower + difference * gamma


def insert(
    cut: Cut, entry: Position, *, worse: Position | None, better: Position | None, quantile: float
) -> Cut:
    """
    Update the cut for one more entry.

    Args:
        worse, better: The neighbours of the cut's entry before the insertion; None for a neighbour
            that does not exist.
        quantile: See `cutoff`.
    """
    if cut.entry is None:
        return Cut(n=1, rank=0, entry=entry)
    n, rank, kept = cut.n + 1, cut.rank, cut.entry
    if entry > kept:
        rank += 1
        worse = entry if worse is None else min(entry, worse)
    else:
        better = entry if better is None else max(entry, better)
    due = math.floor((n - 1) * quantile)
    if rank > due and worse is not None:
        rank, kept = rank - 1, worse
    elif rank < due and better is not None:
        rank, kept = rank + 1, better
    return Cut(n=n, rank=rank, entry=kept)


class Shift(Struct, frozen=True):
    """
    Where the cut lies after several entries were added or removed.

    Attributes:
        n, rank: The `n` and the `rank` of the cut after the change.
        origin: The position from which the cut moves; None if there are no entries.
        steps: The number of entries after the origin, up to and including the cut's new entry:
            positive towards better entries, negative towards worse ones, 0 if the cut's new entry
            is the origin.
    """

    n: int
    rank: int
    origin: Position | None
    steps: int


def removed(cut: Cut, entries: Sequence[Position], *, quantile: float) -> Shift:
    """Find where the cut lies after `entries` have been removed from the rung."""
    n = cut.n - len(entries)
    if cut.entry is None or n <= 0:
        return Shift(0, 0, None, 0)
    due = math.floor((n - 1) * quantile)
    n_worse = cut.rank - sum(entry > cut.entry for entry in entries)
    steps = due - n_worse
    if cut.entry in entries and steps >= 0:
        steps += 1
    return Shift(n, due, cut.entry, steps)


def added(cut: Cut, entries: Sequence[Position], *, quantile: float) -> Shift:
    """Find where the cut lies after `entries` have been added to the rung."""
    n = cut.n + len(entries)
    due = math.floor((n - 1) * quantile)
    if cut.entry is None:
        return Shift(n, due, sorted(entries, reverse=True)[due], 0)
    n_worse = cut.rank + sum(entry > cut.entry for entry in entries)
    return Shift(n, due, cut.entry, due - n_worse)
