"""Schedulers decide in studies without a database, with random reports, failures and requests."""

import math
from random import Random

import numpy as np
import pytest
from harness.contract_executor import ContractExecutor, MemoryTrial
from harness.sketches import PBT

from studydb.domain.life.decisions import Action, RungKey
from studydb.domain.life.states import FINAL, Reason, State
from studydb.domain.scheduling import Close, Idle
from studydb.schedulers import ASHA, HyperBand, MedianStopping, OneEpoch

SEEDS = range(12)


def curve(number, step):
    """Return NaN or a multiple of 1/8, so that sums are exact and many trials have equal scores."""
    rng = Random(number * 1009)
    if rng.random() < 0.05 and step > 3:
        return math.nan
    return (rng.randint(0, 12) + round(8 / step)) / 8


def finite(number, step):
    value = curve(number, step)
    return 2.0 if math.isnan(value) else value


def ended(executor):
    return [trial.reason for trial in executor.trials if trial.state in FINAL]


# --- any scheduler


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "scheduler",
    [
        ASHA(max_t=9, reduction_factor=3),
        ASHA(max_t=9, reduction_factor=3, rule="syne_tune"),
        ASHA(max_t=9, reduction_factor=3, type="promotion", brackets=2),
        HyperBand(max_t=9),
        HyperBand(max_t=8, reduction_factor=2),
        HyperBand(max_t=11, reduction_factor=2.5),
        OneEpoch(i=2, top_k=3, max_t=9),
        MedianStopping(),
        MedianStopping(grace_period=3, interval=2),
        PBT(interval=2, generations=5),
    ],
    ids=repr,
)
def test_study_with_random_mishaps_comes_to_an_end(scheduler, seed):
    executor = ContractExecutor(scheduler, num_trials=40, curve=curve, seed=seed, longest=15)

    executor.run(workers=4, mishaps=0.2)

    assert len(executor.trials) == 40
    left = [one for one in executor.trials if one.state not in FINAL and not one.by_person]
    assert scheduler.resumes or not left
    assert isinstance(scheduler, ASHA) or not left


# --- synchronous HyperBand


@pytest.mark.row("E5")
@pytest.mark.parametrize("seed", SEEDS)
def test_hyperband_keeps_a_third_of_the_trials_planned_for_a_rung(seed):
    scheduler = HyperBand(max_t=9)
    executor = ContractExecutor(scheduler, num_trials=44, curve=curve, seed=seed)

    executor.run(workers=5, mishaps=0.1 * (seed % 2))

    assert executor.closings
    for key, (keep, _) in executor.closings.items():
        # The budget is enough for brackets 0 to 5. Bracket 6 may lack trials if trials are
        # enqueued, and bracket 7 lacks trials in any case.
        may_lack_trials = key.bracket >= 6
        assert may_lack_trials or keep == math.ceil(scheduler.planned(key) / 3)


def test_hyperband_without_mishaps_trains_the_planned_number_of_trials_at_each_rung():
    executor = ContractExecutor(HyperBand(max_t=9), num_trials=22, curve=finite)

    executor.run(workers=3)

    reached = {
        key: len(rung.entries) for key, rung in executor.rungs_by_key.items() if key.bracket < 3
    }
    assert reached == {RungKey(0, 1): 9, RungKey(0, 3): 3, RungKey(1, 3): 5}
    assert ended(executor).count(Reason.COMPLETED) == 1 + 2 + 3 + 1
    assert ended(executor).count(Reason.GIVEN_UP) == 6 + 2 + 3 + 4


def test_hyperband_resumes_exactly_the_best_of_a_rung():
    executor = ContractExecutor(HyperBand(max_t=9), num_trials=22, curve=finite)

    executor.run(workers=3)

    assert executor.closings
    for key, (keep, _) in executor.closings.items():
        ranked = sorted(executor.rungs_by_key[key].entries, key=lambda one: one.score)
        went_on = [executor.trials[one.trial].step > one.step for one in ranked]
        assert went_on == [True] * keep + [False] * (len(ranked) - keep), key
        for one in ranked[keep:]:
            assert executor.trials[one.trial].reason is Reason.GIVEN_UP


def test_hyperband_waits_for_no_trial_that_a_person_has_paused():
    executor = ContractExecutor(HyperBand(max_t=9), num_trials=22, curve=finite)
    while len(executor.trials) < 9:
        executor._take()
    executor.trials[4].state, executor.trials[4].by_person = State.PAUSED, True

    executor.run(workers=3)

    assert RungKey(0, 1) in executor.closings
    assert [one.number for one in executor.trials if one.state not in FINAL] == [4]


def test_free_worker_begins_the_next_bracket_while_a_bracket_waits_for_its_last_trial():
    executor = ContractExecutor(HyperBand(max_t=9), num_trials=22, curve=finite)
    executor.trials = [MemoryTrial(number, 0, State.RUNNING) for number in range(9)]
    executor.next_draw = 9
    for trial in executor.trials[:8]:
        executor.tell(trial, 1, trial.number / 8)

    assert executor.next_work() is Idle.START_NEW
    executor.tell(executor.trials[8], 1, 1.0)
    assert executor.next_work() == Close(RungKey(0, 1), keep=3)


# --- median stopping


@pytest.mark.row("E7")
@pytest.mark.parametrize("hard_stop", [True, False])
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_trial_ends_or_pauses_exactly_if_its_best_is_worse_than_the_median_of_earlier_means(
    seed, interval, hard_stop
):
    scheduler = MedianStopping(grace_period=2, interval=interval, hard_stop=hard_stop)
    executor = ContractExecutor(scheduler, num_trials=30, curve=finite, seed=seed, longest=12)

    executor.run(workers=4, mishaps=0.1)

    action = Action.STOP if hard_stop else Action.PAUSE
    judged_worse = {(n, step) for n, step, one in executor.decisions if one.action is action}
    assert judged_worse
    for key, rung in executor.rungs_by_key.items():
        for place, entry in enumerate(rung.entries):
            means = [np.mean(one.values_from(2)) for one in rung.entries[:place]]
            expected = len(means) >= 3 and min(entry.values.values()) > np.median(means)
            assert ((entry.trial, entry.step) in judged_worse) == expected, (key, place)
    if hard_stop:
        assert Reason.EARLY_STOPPED in ended(executor)


def test_means_that_are_not_finite_do_not_count_and_nan_stops_no_trial_with_a_good_best_value():
    values = {4: math.nan, 6: math.inf}
    executor = ContractExecutor(
        MedianStopping(min_samples=1),
        num_trials=12,
        curve=lambda number, step: values.get(step, 0.0) if number == 5 else number + step,
        longest=8,
    )

    executor.run(workers=4)

    entries = [one for rung in executor.rungs_by_key.values() for one in rung.entries]
    assert all(math.isfinite(one.score) for one in entries)
    assert max(key.step for key, rung in executor.rungs_by_key.items() if rung.entries) == 8
    assert executor.trials[5].reason is Reason.COMPLETED


# --- one-epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_one_epoch_trains_only_the_best_trials_of_its_rung_to_the_end(seed):
    scheduler = OneEpoch(i=2, top_k=4, max_t=9)
    executor = ContractExecutor(scheduler, num_trials=30, curve=finite, seed=seed)

    executor.run(workers=5)

    ((keep, waited),) = executor.closings.values()
    assert (keep, len(waited)) == (4, 30)
    best = sorted(executor.rungs_by_key[RungKey(0, 2)].entries, key=lambda one: one.score)[:4]
    completed = [one.number for one in executor.trials if one.reason is Reason.COMPLETED]
    assert completed == sorted(one.trial for one in best)
    assert ended(executor).count(Reason.GIVEN_UP) == 26


def test_one_epoch_chooses_its_best_trials_when_half_of_max_steps_is_spent():
    executor = ContractExecutor(
        OneEpoch(i=1, top_k=2, max_t=9), num_trials=math.inf, curve=finite, max_steps=60
    )

    executor.run(workers=3)

    assert 28 <= len(executor.trials) <= 33
    assert ended(executor).count(Reason.COMPLETED) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_one_epoch_with_mishaps_chooses_once_and_leaves_only_trials_that_a_person_has_paused(seed):
    executor = ContractExecutor(
        OneEpoch(i=2, top_k=3, max_t=9), num_trials=25, curve=curve, seed=seed
    )

    executor.run(workers=4, mishaps=0.2)

    assert set(executor.closings) == {RungKey(0, 2)}
    assert all(one.by_person for one in executor.trials if one.state not in FINAL)


# --- PBT


@pytest.mark.parametrize("seed", SEEDS)
def test_generations_never_go_back_and_donors_are_of_the_same_generation(seed):
    scheduler = PBT(interval=3, generations=6)
    executor = ContractExecutor(scheduler, num_trials=12, curve=curve, seed=seed)

    executor.run(workers=4, mishaps=0.05)

    generations: dict[int, list[int]] = {}
    exploits = 0
    for number, _, decision in executor.decisions:
        if decision.entry is not None:
            generations.setdefault(number, []).append(decision.entry.rung.step // 3)
        if decision.exploit is not None:
            exploits += 1
            members = executor.rungs_by_key[decision.entry.rung].entries
            assert decision.exploit.source_trial_id in [one.trial for one in members]
    assert exploits
    assert all(found == sorted(set(found)) for found in generations.values())


def test_exploits_follow_from_the_seed_alone():
    runs = []
    for _ in range(2):
        executor = ContractExecutor(PBT(3, 6), num_trials=12, curve=curve, seed=1)
        executor.run(workers=4)
        runs.append([one for *_, one in executor.decisions])
    assert runs[0] == runs[1]
