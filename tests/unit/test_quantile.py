"""A rung's cut (the worse of the two entries around its quantile), and the rung's cutoff."""

import math

import numpy as np
import pytest

from studydb.domain.quantile import Cut, cutoff, insert

THIRD = 1 - 1 / 3


def test_rung_without_entries_has_no_cutoff():
    assert cutoff(Cut(), None, THIRD) is None


def test_first_entry_is_the_cut():
    cut = insert(Cut(), (0.5, 7), worse=None, better=None, quantile=THIRD)

    assert cut == Cut(n=1, rank=0, entry=(0.5, 7))
    assert cutoff(cut, None, THIRD) == 0.5


def test_cutoff_lies_between_the_cut_and_its_better_neighbour():
    cut = Cut(n=2, rank=0, entry=(1.0, 1))

    assert cutoff(cut, (0.0, 2), 0.25) == 0.75
    assert cutoff(cut, (0.0, 2), 0.75) == 0.25


@pytest.mark.parametrize(
    ("entry", "cut_entry"),
    [((0.5, 5), (1.0, 1)), ((1.5, 5), (1.5, 5)), ((3.0, 5), (2.0, 9))],
)
def test_cut_of_three_entries_at_the_median_is_the_middle_entry(entry, cut_entry):
    two = Cut(n=2, rank=0, entry=(2.0, 9))

    cut = insert(two, entry, worse=None, better=(1.0, 1), quantile=0.5)

    assert cut == Cut(n=3, rank=1, entry=cut_entry)


def test_equal_scores_are_ordered_by_trial_id():
    cut = insert(Cut(1, 0, (1.0, 5)), (1.0, 6), worse=None, better=None, quantile=0.5)

    assert cut == Cut(n=2, rank=0, entry=(1.0, 6))
    assert cutoff(cut, (1.0, 5), 0.5) == 1.0


def test_cutoff_between_infinity_and_a_number_is_nan_as_in_numpy():
    with np.errstate(invalid="ignore"):
        expected = np.percentile([-math.inf, 0.0], 25)

    assert math.isnan(expected)
    assert math.isnan(cutoff(Cut(2, 0, (math.inf, 1)), (0.0, 2), 0.25))
