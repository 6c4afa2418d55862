"""After each insertion the cutoff equals numpy's percentile of all entries."""

from bisect import bisect_left, insort

import numpy as np
from harness import asha_reference
from hypothesis import example, given
from hypothesis import strategies as st

from studydb.domain.quantile import Cut, cutoff, insert

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
    """A rung whose entries are a sorted list in place of the database's index."""

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
    # numpy gets a percentile, and divides the percentile by 100.
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
