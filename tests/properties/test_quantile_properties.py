"""The cutoff of a rung equals numpy's percentile; the cut is the entry at the quantile's rank."""

import math
from bisect import bisect_left, insort

import numpy as np
from harness import asha_reference
from hypothesis import example, given
from hypothesis import strategies as st

from studydb.domain.quantile import Cut, added, cutoff, insert, removed

INFINITY = float("inf")

# The listed scores often repeat, which makes ties; two of them differ only in the last bit.
scores = st.one_of(
    st.sampled_from([0.0, 0.1, 0.1 + 2**-56, 1.0, -1.0, INFINITY, -INFINITY]),
    st.floats(allow_nan=False),
)
factors = st.one_of(
    st.sampled_from([2.0, 3.0, 4.0, 1.0000001, 1e9]),
    st.floats(1.0, 1e6, exclude_min=True, allow_nan=False),
)


class Rung:
    """A rung that keeps its entries in a sorted list; the package keeps them in a database."""

    def __init__(self, quantile):
        self.quantile, self.entries, self.cut = quantile, [], Cut()

    @property
    def worse(self):
        place = bisect_left(self.entries, self.cut.entry) + 1
        return self.entries[place] if place < len(self.entries) else None

    @property
    def better(self):
        place = bisect_left(self.entries, self.cut.entry) - 1
        return self.entries[place] if place >= 0 else None

    def add(self, entry):
        worse, better = (self.worse, self.better) if self.entries else (None, None)
        insort(self.entries, entry)
        self.cut = insert(self.cut, entry, worse=worse, better=better, quantile=self.quantile)

    def cutoff(self):
        return cutoff(self.cut, self.better, self.quantile)


@given(st.lists(scores, min_size=1, max_size=40), factors, st.randoms())
@example([1.0] * 9, 3.0, None)
@example([INFINITY, -INFINITY, INFINITY, 0.0], 2.0, None)
@example([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 3.0, None)
def test_cutoff_equals_numpy_after_every_insertion(values, reduction_factor, rng):
    trials = list(range(len(values)))
    if rng is not None:
        rng.shuffle(trials)
    # * 100 / 100, because the reference gives numpy a percentile, which numpy divides by 100.
    rung = Rung((1 - 1 / reduction_factor) * 100 / 100)

    for entry in zip(values, trials, strict=True):
        rung.add(entry)

        expected = asha_reference.cutoff([-score for score, _ in rung.entries], reduction_factor)
        assert np.array_equal(rung.cutoff(), -expected, equal_nan=True)


@given(st.lists(scores, min_size=1, max_size=40), st.floats(0, 1))
def test_cut_is_the_entry_at_its_rank_counted_from_the_worst_entry(values, quantile):
    rung = Rung(quantile)

    for trial, score in enumerate(values):
        rung.add((score, trial))

        assert rung.cut.n == len(rung.entries)
        assert rung.entries[::-1][rung.cut.rank] == rung.cut.entry
        assert rung.cut.rank == min(int((rung.cut.n - 1) * quantile), rung.cut.n - 1)


def cut_of(entries, quantile):
    """Compute, by sorting the entries, the cut that inserting them one by one would give."""
    ranked = sorted(entries, reverse=True)
    rank = math.floor((len(ranked) - 1) * quantile) if ranked else 0
    return Cut(len(ranked), rank, ranked[rank] if ranked else None)


def carried_out(shift, entries):
    """
    Return the cut after a shift; find the cut's entry as `store/rung_ranks.py` does.

    This entry is `shift.steps` places better than `shift.origin`; a negative number means worse.
    """
    entry = shift.origin
    if shift.steps > 0:
        entry = sorted((one for one in entries if one < shift.origin), reverse=True)[
            shift.steps - 1
        ]
    elif shift.steps < 0:
        entry = sorted(one for one in entries if one > shift.origin)[-shift.steps - 1]
    return Cut(shift.n, shift.rank, entry)


@given(st.lists(scores, min_size=1, max_size=12), st.data(), factors)
def test_cut_updated_for_removed_or_added_entries_equals_the_cut_computed_anew(
    values, data, factor
):
    quantile = 1 - 1 / factor
    entries = [(score, number) for number, score in enumerate(values)]
    some = data.draw(st.lists(st.sampled_from(entries), unique=True))
    others = [entry for entry in entries if entry not in some]

    fewer = removed(cut_of(entries, quantile), some, quantile=quantile)
    assert carried_out(fewer, others) == cut_of(others, quantile)
    if some:
        more = added(cut_of(others, quantile), some, quantile=quantile)
        assert carried_out(more, entries) == cut_of(entries, quantile)
