"""The schedulers ASHA and FIFO: rungs, decisions and specs."""

import math
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Idle, Report, RungView, WaitingTrial
from studydb.domain.specs.grammar import parse_call
from studydb.schedulers import (
    ASHA,
    FIFO,
    HyperBand,
    MedianStopping,
    OneEpoch,
    from_call,
    read,
)

STOP, EARLY = Action.STOP, Reason.EARLY_STOPPED
RUNG = RungKey(0, 1)


@dataclass
class View:
    """A study's rungs, and the best trial that waits at each rung."""

    rungs: dict[RungKey, RungView] = field(default_factory=dict)
    waiting: dict[RungKey, WaitingTrial] = field(default_factory=dict)

    def rung(self, key):
        return self.rungs.get(key, RungView(n=0, cutoff=None, entered=False))

    def best_waiting(self, key):
        return self.waiting.get(key)


def judge(step, value, *, cutoff=None, entered=False, **options):
    scheduler = ASHA(max_t=9, **options)
    view = View({key: RungView(3, cutoff, entered) for key in scheduler.locks(0, step)})
    is_nan = math.isnan(value)
    report = Report(step, math.inf if is_nan else value, is_nan, 0)
    return scheduler.judge(report, view)


# --- rungs


@pytest.mark.parametrize(
    ("options", "milestones"),
    [
        ({"max_t": 27, "reduction_factor": 3}, (1, 3, 9)),
        ({"max_t": 81, "grace_period": 2, "reduction_factor": 3}, (2, 6, 18, 54)),
        ({"max_t": 100}, (1, 4, 16, 64)),
        ({"max_t": 10, "grace_period": 10}, ()),
        ({"max_t": 1}, ()),
        ({"max_t": 10, "reduction_factor": 1.5}, (1, 2, 3, 4, 6, 8)),
        ({"max_t": 1000, "reduction_factor": 10}, (1, 10, 100)),
        ({"max_t": 243, "reduction_factor": 3}, (1, 3, 9, 27, 81)),
        ({"max_t": 2**63}, tuple(4**k for k in range(31))),  # no trial reaches step 4**31 = 2**62
        ({"max_t": 10**400}, tuple(4**k for k in range(31))),
        ({"max_t": 10**30, "grace_period": 2**62}, ()),
    ],
)
def test_rungs_are_at_the_grace_period_times_powers_of_the_reduction_factor_below_max_t(
    options, milestones
):
    scheduler = ASHA(**options)

    assert scheduler.milestones() == milestones
    assert [spec.key for spec in scheduler.rungs()] == [(0, step) for step in milestones]


@pytest.mark.parametrize("reduction_factor", [2, 3, 4, 1.7])
def test_rungs_are_at_the_same_steps_as_in_ray_tune(reduction_factor):
    for max_t in range(1, 200):
        n_rungs = int(math.log(max_t) / math.log(reduction_factor) + 1)
        rungs = [reduction_factor**k for k in range(n_rungs)]

        reached = {step for step in range(1, max_t) for rung in rungs if step - 1 < rung <= step}

        assert set(ASHA(max_t=max_t, reduction_factor=reduction_factor).milestones()) == reached


def test_next_decision_step_is_the_next_rung_or_max_t_and_then_each_step():
    scheduler = ASHA(max_t=9, reduction_factor=3)

    due = [scheduler.next_decision_step(0, step) for step in range(10)]

    assert due == [1, 3, 3, 9, 9, 9, 9, 9, 9, 10]


@pytest.mark.parametrize("options", [{"reduction_factor": 10**30}, {"grace_period": 10**29}])
def test_step_that_no_trial_can_reach_needs_no_decision(options):
    scheduler = ASHA(max_t=10**30, **options)

    assert scheduler.next_decision_step(0, 1) is None


def test_report_is_judged_at_the_last_milestone_up_to_its_step():
    scheduler = ASHA(max_t=27, grace_period=2, reduction_factor=3)

    reached = [list(scheduler.locks(0, step)) for step in (1, 2, 5, 6, 17, 18, 26, 27, 99)]

    at = {step: [(0, step)] for step in (2, 6, 18)}
    assert reached == [[], at[2], at[2], at[6], at[6], at[18], at[18], [], []]


# --- brackets


@pytest.mark.row("E2")
def test_each_bracket_begins_one_milestone_later():
    scheduler = ASHA(max_t=27, reduction_factor=3, brackets=4)

    assert [scheduler.milestones(bracket) for bracket in range(4)] == [(1, 3, 9), (3, 9), (9,), ()]
    assert [spec.key for spec in scheduler.rungs()] == [
        *((0, step) for step in (1, 3, 9)),
        *((1, step) for step in (3, 9)),
        (2, 9),
    ]
    assert list(scheduler.locks(1, 2)) == []
    assert list(scheduler.locks(-1, 9)) == list(scheduler.locks(4, 9)) == []
    assert scheduler.next_decision_step(1, 0) == 3


def test_probability_of_a_bracket_is_the_softmax_of_its_number_of_rungs():
    scheduler = ASHA(max_t=27, reduction_factor=3, brackets=3)

    drawn = [scheduler.bracket_of(seed=1, draw=draw) for draw in range(20_000)]

    weights = np.exp([3, 2, 1])
    expected = weights / weights.sum()
    found = np.bincount(drawn) / len(drawn)
    assert np.abs(found - expected).max() < 0.01
    assert drawn == [scheduler.bracket_of(seed=1, draw=draw) for draw in range(20_000)]
    assert drawn != [scheduler.bracket_of(seed=2, draw=draw) for draw in range(20_000)]


# --- ASHA by promotion

PAUSED = Reason.PAUSED


def promoted(waiting, *, n=3, cutoff=0.5, **options):
    """
    Return the promoted trial's id, or None if no trial is promoted.

    `waiting` maps a rung's key to the id and score of the best trial that waits at that rung.
    """
    scheduler = ASHA(max_t=27, reduction_factor=3, type="promotion", end_game=0, **options)
    view = View(
        {key: RungView(n, cutoff) for key in map(attrgetter("key"), scheduler.rungs())},
        {RungKey(*key): WaitingTrial(RungKey(*key), *one) for key, one in waiting.items()},
    )
    chosen = scheduler.next_work(view)
    return None if chosen is Idle.START_NEW else chosen.trial_id


def test_trial_pauses_at_its_rung_whatever_its_score_and_completes_at_max_t():
    for score in (-1.0, 0.5, 9.0):
        entry = Entry(RungKey(0, 1), score, waits=True)
        paused = Decision(Action.PAUSE, PAUSED, entry)
        assert judge(1, score, cutoff=0.5, type="promotion") == paused
    completed = Decision(STOP, Reason.COMPLETED)
    assert judge(9, 1.0, type="promotion", end_game=0) == completed
    counted = Decision(STOP, Reason.COMPLETED, Entry(RungKey(0, 9), 1.0))
    assert judge(9, 1.0, type="promotion") == counted
    assert judge(9, 1.0, type="promotion", entered=True) == completed


def test_resumed_trial_continues_if_it_reports_at_the_rung_again():
    assert judge(1, 0.1, entered=True, type="promotion") == CONTINUE


def test_nan_stops_a_trial_instead_of_pausing_it():
    assert judge(1, math.nan, type="promotion").action is STOP


def test_best_waiting_trial_is_promoted_unless_it_is_worse_than_the_cutoff():
    assert promoted({(0, 1): (7, 0.5)}) == 7
    assert promoted({(0, 1): (7, np.nextafter(0.5, 1))}) is None
    assert promoted({}) is None


def test_no_trial_is_promoted_from_a_rung_with_one_entry_or_a_nan_cutoff():
    assert promoted({(0, 1): (7, 0.1)}, n=1) is None
    assert promoted({(0, 1): (7, 0.1)}, cutoff=math.nan) is None


@pytest.mark.row("E4")
def test_highest_rung_with_a_promotable_trial_comes_first():
    assert promoted({(0, 1): (1, 0.1), (0, 3): (3, 0.4), (0, 9): (9, 0.6)}) == 3
    assert promoted({(0, 9): (1, 0.3), (1, 9): (2, 0.1)}, brackets=2) == 1
    assert promoted({(0, 3): (1, 0.3), (1, 9): (2, 0.5)}, brackets=2) == 2


def test_asha_of_the_type_stopping_promotes_no_trial():
    assert not ASHA(max_t=9).resumes
    assert ASHA(max_t=9).next_work(View()) is Idle.START_NEW


# --- ASHA by stopping


def test_first_trial_at_a_rung_continues_and_is_recorded():
    assert judge(1, 0.5) == Decision(entry=Entry(RUNG, 0.5))


@pytest.mark.parametrize(
    ("value", "action"),
    [
        (0.4, Action.CONTINUE),
        (0.5, Action.CONTINUE),
        (np.nextafter(0.5, 1), STOP),
        (math.inf, STOP),
        (-math.inf, Action.CONTINUE),
    ],
)
def test_value_strictly_worse_than_the_cutoff_stops_the_trial(value, action):
    reason = EARLY if action is STOP else None
    assert judge(1, value, cutoff=0.5) == Decision(action, reason, Entry(RUNG, value), 0.5)


@pytest.mark.parametrize("cutoff", [None, 0.5, math.inf])
def test_nan_stops_even_the_first_trial_at_a_rung(cutoff):
    assert judge(1, math.nan, cutoff=cutoff).action is STOP


def test_nan_cutoff_stops_no_trial():
    assert judge(1, 1e300, cutoff=math.nan).action is Action.CONTINUE


def test_trial_is_judged_once_at_a_rung():
    assert judge(1, 9.0, cutoff=0.5, entered=True) == CONTINUE


def test_report_within_the_grace_period_is_not_judged():
    assert judge(2, math.nan, grace_period=3) == CONTINUE


@pytest.mark.parametrize("step", [9, 10])
def test_report_at_max_t_completes_the_trial_whatever_the_value(step):
    assert judge(step, math.nan) == Decision(STOP, Reason.COMPLETED)


@pytest.mark.parametrize("reduction_factor", [2, 3, 4, 1.7])
def test_quantile_is_rounded_as_in_numpy(reduction_factor):
    q = np.true_divide((1 - 1 / reduction_factor) * 100, 100)

    assert ASHA(max_t=9, reduction_factor=reduction_factor).quantile == q


# --- specs


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_t": 0}, "needs 1 <= grace_period <= max_t"),
        ({"max_t": 9, "grace_period": 10}, "needs 1 <= grace_period <= max_t"),
        ({"max_t": 9, "grace_period": 0}, "needs 1 <= grace_period"),
        ({"max_t": 9.5}, "ASHA.max_t is 9.5; it must be an integer"),
        ({"max_t": 9, "grace_period": 1.5}, "ASHA.grace_period is 1.5; it must be an integer"),
        ({"max_t": "9"}, "ASHA.max_t is '9'; it must be an integer"),
        ({"max_t": True}, "ASHA.max_t is True; it must be an integer"),
        ({"max_t": math.inf}, "ASHA.max_t is inf"),
        ({"max_t": math.nan}, "ASHA.max_t is nan"),
        ({"max_t": 9, "reduction_factor": 1}, "must be a finite number greater than 1"),
        ({"max_t": 9, "reduction_factor": math.nan}, "must be a finite number greater than 1"),
        ({"max_t": 9, "reduction_factor": math.inf}, "must be a finite number greater than 1"),
        ({"max_t": 9, "type": "promoting"}, "type is 'promoting'; it must be 'stopping' or"),
        ({"max_t": 9, "brackets": 0}, "brackets is 0; .* must be from 1 to 3"),
        ({"max_t": 9, "brackets": 4}, "brackets is 4; .* must be from 1 to 3"),
        ({"max_t": 9, "brackets": 1.5}, "ASHA.brackets is 1.5; it must be an integer"),
        ({"max_t": 9, "rule": "optuna"}, "rule is 'optuna'; it must be 'ray' or 'syne_tune'"),
        ({"max_t": 9, "rule": "syne_tune", "type": "promotion"}, "the rule is for the type 'stop"),
        ({"max_t": 9, "end_game": 0.5}, "end_game is 0.5; it needs the type 'promotion'"),
        ({"max_t": 9, "end_game": 1, "type": "promotion"}, "at least 0 and less than 1"),
        ({"max_t": 9, "end_game": -0.1, "type": "promotion"}, "at least 0 and less than 1"),
        ({"max_t": 9, "end_game": math.nan, "type": "promotion"}, "at least 0 and less than 1"),
        ({"max_t": 2**62, "end_game": 0.5, "type": "promotion"}, "a max_t that trials can reach"),
    ],
)
def test_asha_options_out_of_range_are_refused(options, why):
    with pytest.raises(InvalidSpec, match=why):
        ASHA(**options)


@pytest.mark.parametrize(
    "scheduler",
    [
        ASHA(max_t=27, reduction_factor=1.5),
        ASHA(max_t=9),
        ASHA(max_t=9, rule="syne_tune"),
        ASHA(max_t=9, type="promotion"),
        ASHA(max_t=9, type="promotion", end_game=0),
        ASHA(max_t=10**30, type="promotion"),
        FIFO(),
        HyperBand(max_t=81, reduction_factor=2.5),
        MedianStopping(hard_stop=False),
        OneEpoch(1, 5, 27),
    ],
    ids=repr,
)
def test_scheduler_round_trips_as_json(scheduler):
    assert read(scheduler.to_json()) == scheduler


def test_asha_stored_by_an_older_version_has_the_rule_ray_and_no_end_game():
    row = {"name": "ASHA", "max_t": 9, "grace_period": 1, "reduction_factor": 3}

    stopping, promotion = read(row), read(row | {"type": "promotion"})

    assert (stopping.rule, stopping.end_game) == ("ray", 0)
    assert (promotion.rule, promotion.end_game) == ("ray", 0)
    assert stopping.to_json() == row
    assert promotion.to_json() == row | {"type": "promotion"}


def test_asha_stored_by_an_older_version_may_have_a_bracket_at_a_rung_that_no_trial_can_reach():
    row = {"name": "ASHA", "max_t": 2**63, "grace_period": 1, "reduction_factor": 2, "brackets": 64}

    scheduler = read(row)

    assert scheduler.to_json() == row
    assert scheduler.milestones(61) == (2**61,)
    assert scheduler.milestones(62) == scheduler.milestones(63) == ()
    assert scheduler.next_decision_step(63, 5) is None


def test_default_end_game_of_promotion_is_two_fifths_if_trials_can_reach_max_t():
    assert ASHA(max_t=9, type="promotion").end_game == 0.4
    assert ASHA(max_t=9, type="promotion").to_json()["end_game"] == 0.4
    assert ASHA(max_t=9).end_game == 0
    assert ASHA(max_t=2**62, type="promotion").end_game == 0


def test_scheduler_with_an_unknown_or_missing_name_or_option_is_refused():
    with pytest.raises(InvalidSpec, match=r"no scheduler 'AHSA'.*ASHA"):
        from_call(parse_call("AHSA"))
    with pytest.raises(InvalidSpec, match=r"ASHA has no argument 'max'.*Did you mean 'max_t'"):
        from_call(parse_call("ASHA(max=9)"))
    with pytest.raises(InvalidSpec, match=r"Cannot make ASHA: .*'max_t'"):
        read({"name": "ASHA"})
    with pytest.raises(InvalidSpec, match=r"The scheduler {'max_t': 9} has no name"):
        read({"max_t": 9})


@pytest.mark.row("E1")
def test_fifo_has_no_rungs_and_stops_no_trial():
    assert FIFO().rungs() == ()
    assert FIFO().next_decision_step(0, 5) is None
    assert FIFO().locks(0, 5) == ()
    assert FIFO().judge(Report(1, math.inf, is_nan=True, bracket=0), View()) == CONTINUE


def test_max_t_may_exceed_64_bits():
    assert ASHA(max_t=2**64).to_json()["max_t"] == 2**64
