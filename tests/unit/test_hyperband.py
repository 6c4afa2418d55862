"""HyperBand's brackets, trials and rungs, and wrong options of schedulers other than ASHA."""

import math
from fractions import Fraction

import pytest
from harness.contract_executor import ContractExecutor

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import ENQUEUED_DRAWS
from studydb.schedulers import HyperBand, MedianStopping, OneEpoch


@pytest.mark.parametrize(
    ("max_t", "reduction_factor", "sizes"),
    [
        (81, 3, (81, 34, 15, 8, 5)),
        (27, 3, (27, 12, 6, 4)),
        (16, 2, (16, 10, 7, 5, 5)),
        (3, 3, (3, 2)),
    ],
)
def test_brackets_have_as_many_trials_as_in_ray_tune(max_t, reduction_factor, sizes):
    scheduler = HyperBand(max_t, reduction_factor)

    assert scheduler.sizes == sizes
    assert scheduler.band_size == sum(sizes)


def test_numbers_of_trials_are_rounded_up_from_the_exact_numbers():
    for factor in (2, 3, 4, 5):
        for most in range(1, 9):
            exact = [math.ceil(Fraction(most + 1, s + 1) * factor**s) for s in range(most, -1, -1)]
            assert HyperBand(factor**most, factor).sizes == tuple(exact)


def test_rungs_of_a_bracket_are_at_max_t_divided_by_powers_of_the_reduction_factor():
    scheduler = HyperBand(81)

    found = [scheduler.milestones(bracket) for bracket in range(6)]

    assert found == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,), (), (1, 3, 9, 27)]
    assert HyperBand(100, 3).milestones(0) == (1, 3, 11, 33)


def test_bracket_whose_first_rung_would_be_at_step_0_is_left_out():
    scheduler = HyperBand(6, 3)  # log3(6) = 1.6 is rounded to 2; 6 / 3**2 is rounded down to 0

    assert scheduler.milestones(0) == (2,)
    assert scheduler.sizes == (5, 3)


def test_draws_fill_the_brackets_in_turn_and_the_next_band_has_new_bracket_numbers():
    scheduler = HyperBand(9)

    found = [scheduler.bracket_of(seed=0, draw=draw) for draw in range(2 * scheduler.band_size)]

    assert scheduler.sizes == (9, 5, 3)
    assert found == [0] * 9 + [1] * 5 + [2] * 3 + [3] * 9 + [4] * 5 + [5] * 3
    assert scheduler.bracket_of(seed=0, draw=ENQUEUED_DRAWS + 10) == 1


def test_number_of_planned_trials_is_divided_by_the_reduction_factor_at_each_rung():
    scheduler = HyperBand(81)

    planned = [scheduler.planned(RungKey(0, step)) for step in (1, 3, 9, 27)]

    assert planned == [81, 27, 9, 3]
    assert scheduler.planned(RungKey(1, 27)) == 4


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: HyperBand(0), "max_t is 0; it must be at least 1"),
        (lambda: HyperBand(9, 1.5), "reduction_factor is 1.5; it must be a finite number"),
        (lambda: HyperBand(9, math.inf), "reduction_factor is inf; it must be a finite number"),
        (lambda: HyperBand(9, math.nan), "reduction_factor is nan; it must be a finite number"),
        (lambda: HyperBand(1), "max_t is 1 and its reduction_factor 3, so no bracket has a rung"),
        (lambda: HyperBand(2), "no bracket has a rung; give a max_t that is at least the reduc"),
        (lambda: HyperBand(9, 100.0), "max_t is 9 and its reduction_factor 100.0, so no bracket"),
        (lambda: HyperBand(2**63), "must fit into 64 bits"),
        (lambda: HyperBand(9.5), "must be an integer"),
        (lambda: OneEpoch(0, 5, 9), "i is 0 and max_t 9; it needs 1 <= i < max_t"),
        (lambda: OneEpoch(9, 5, 9), "i is 9 and max_t 9; it needs 1 <= i < max_t"),
        (lambda: OneEpoch(1, 0, 9), "top_k is 0; it must be at least 1"),
        (lambda: MedianStopping(grace_period=0), "grace_period is 0; it must be at least 1"),
        (lambda: MedianStopping(min_samples=0), "min_samples is 0; it must be at least 1"),
        (lambda: MedianStopping(interval=0), "interval is 0; it must be at least 1"),
        (lambda: MedianStopping(hard_stop=1), "MedianStopping.hard_stop is 1; it must be true"),
    ],
)
def test_options_out_of_range_are_refused(make, why):
    with pytest.raises(InvalidSpec, match=why):
        make()


def test_max_t_of_2_to_the_62_has_63_brackets_and_rungs_at_distinct_steps():
    scheduler = HyperBand(2**62, 2)

    assert len(scheduler.sizes) == 63
    assert scheduler.milestones(0)[0] == 1
    assert list(scheduler.milestones(0)) == sorted(set(scheduler.milestones(0)))


def test_bracket_that_the_budget_cannot_fill_keeps_a_share_of_the_trials_that_arrived():
    executor = ContractExecutor(HyperBand(9), num_trials=4, curve=lambda number, _: float(number))

    executor.run(workers=2)

    assert [keep for keep, _ in executor.closings.values()] == [2, 1]
    assert [one.reason for one in executor.trials].count(Reason.COMPLETED) == 1
    assert executor.trials[0].reason is Reason.COMPLETED


def test_rung_at_which_no_trial_waits_stays_open_for_the_trials_of_an_extended_study():
    executor = ContractExecutor(
        HyperBand(9), num_trials=1, curve=lambda number, _: float(number) if number else math.nan
    )
    executor.run(workers=2)
    executor.num_trials = 4

    executor.run(workers=2)

    reasons = [one.reason for one in executor.trials]
    assert reasons.count(Reason.EARLY_STOPPED) == 1
    assert executor.trials[1].reason is Reason.COMPLETED
