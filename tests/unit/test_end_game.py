"""ASHA's end game: workers spend the last share of the training on the best paused trials."""

import math
from itertools import pairwise
from random import Random

import pytest
from harness.contract_executor import ContractExecutor, MemoryTrial

from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import FINAL, Reason, State
from studydb.domain.scheduling import Idle, WaitingTrial
from studydb.schedulers import ASHA

SEEDS = range(10)


def curve(number, step):
    return Random(number * 1009).random() + 1 / step


def executor_of(seed=0, *, end_game, brackets=1, **options):
    scheduler = ASHA(27, 1, 3, brackets, type="promotion", end_game=end_game)
    given = {"num_trials": math.inf, "curve": curve} | options
    return ContractExecutor(scheduler, seed=seed, **given)


def completed(executor):
    return sum(one.reason is Reason.COMPLETED for one in executor.trials)


@pytest.mark.parametrize("brackets", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_new_trial_is_made_after_the_end_game_of_a_study_with_max_steps_has_begun(
    seed, brackets
):
    executor = executor_of(seed, end_game=0.25, max_steps=400, brackets=brackets)
    made = {}
    add = executor._add
    executor._add = lambda draw: (made.setdefault(len(executor.trials), executor.spent), add(draw))

    executor.run(workers=4)

    assert executor.steps == 400
    assert max(made.values()) < 0.75
    plain = executor_of(seed, end_game=0, max_steps=400, brackets=brackets)
    plain.run(workers=4)
    assert len(plain.trials) > len(executor.trials)


def test_more_trials_reach_max_t_with_an_end_game_for_most_seeds():
    more = 0
    for seed in SEEDS:
        found = []
        for end_game in (0, 0.3):
            executor = executor_of(seed, end_game=end_game, max_steps=600)
            executor.run(workers=4)
            found.append(completed(executor))
        more += found[1] > found[0]
    assert more >= 8


def test_paused_trial_with_the_best_score_is_resumed_and_the_highest_rung_wins_a_tie():
    executor = executor_of(end_game=0.5, num_trials=1)
    waiting = {(0, 1): 0.2, (0, 3): 0.1, (0, 9): 0.3}
    executor.best_waiting = lambda key: (
        WaitingTrial(key, 7, waiting[key]) if key in waiting else None
    )
    executor.steps = executor.max_steps = 10

    assert executor.next_work().rung == RungKey(0, 3)
    waiting[0, 9] = 0.1
    assert executor.next_work().rung == RungKey(0, 9)
    waiting.update(dict.fromkeys(waiting, math.inf))
    assert executor.next_work() is Idle.WAIT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("brackets", [1, 2])
def test_study_with_num_trials_makes_all_trials_and_its_end_game_takes_at_most_its_share_of_steps(
    seed, brackets
):
    plain = executor_of(seed, end_game=0, num_trials=120, brackets=brackets)
    executor = executor_of(seed, end_game=0.3, num_trials=120, brackets=brackets)

    plain.run(workers=4)
    executor.run(workers=4)

    assert len(executor.trials) == 120
    first = [
        sum(one.bracket == bracket and one.step > 0 for one in executor.trials)
        for bracket in range(brackets)
    ]
    due = [(*executor.scheduler.milestones(bracket), 27) for bracket in range(brackets)]
    planned = sum(
        n * sum((step - before) / 3**k for k, (before, step) in enumerate(pairwise((0, *at))))
        for n, at in zip(first, due, strict=True)
    )
    assert executor.steps <= max(planned / 0.7, plain.steps) + 27
    assert completed(executor) >= completed(plain)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_trial_is_trained_to_max_t_even_if_the_share_of_the_end_game_is_too_small_for_it(
    seed, n
):
    executor = executor_of(seed, end_game=0.01, num_trials=n)

    executor.run(workers=4)

    assert completed(executor) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_another_trial_is_trained_to_max_t_if_the_first_three_fail_after_the_first_rung(seed):
    executor = executor_of(seed, end_game=0.1, num_trials=9)
    report = executor.report

    def fail_above_the_first_rung(trial):
        if trial.step >= 1 and sum(one.reason is Reason.FAILED for one in executor.trials) < 3:
            executor._end(trial, Reason.FAILED)
        else:
            report(trial)

    executor.report = fail_above_the_first_rung

    executor.run(workers=2)

    assert sum(one.reason is Reason.FAILED for one in executor.trials) == 3
    assert completed(executor) >= 1


def test_end_game_of_a_study_with_num_trials_waits_for_the_trials_below_the_first_rung():
    executor = executor_of(end_game=0.2, num_trials=2)
    for _ in range(2):
        executor._take()
        executor._take()
    first, second = executor.trials
    executor.rng.choice = lambda options: options[0]  # no step is skipped
    executor.report(first)

    assert executor.next_work() is Idle.WAIT
    executor.report(second)
    assert executor.next_work() == WaitingTrial(RungKey(0, 1), *_best(executor))


@pytest.mark.parametrize("end_game", [0.01, 0.9])
def test_trial_of_a_bracket_without_rungs_is_on_its_way_to_max_t_before_it_has_a_result(end_game):
    """So a paused trial is resumed only within the share of the end game."""
    scheduler = ASHA(9, 1, 3, 3, type="promotion", end_game=end_game)
    executor = ContractExecutor(scheduler, num_trials=0, curve=curve)
    rungs = [len(scheduler.milestones(bracket)) for bracket in range(3)]
    waiting = MemoryTrial(0, 0, State.RUNNING)
    whole = MemoryTrial(1, rungs.index(0), State.RUNNING)
    executor.trials = [waiting, whole]
    executor.rng.choice = lambda options: options[0]  # no step is skipped
    executor.report(waiting)
    assert waiting.state is State.PAUSED
    promoted = WaitingTrial(RungKey(0, 1), *_best(executor))

    assert executor.next_work() == (promoted if end_game > 0.5 else Idle.WAIT)

    executor._end(whole, Reason.FAILED)
    assert executor.next_work() == promoted


def test_free_workers_that_ask_together_resume_only_trials_that_fit_the_share_of_the_end_game():
    scheduler = ASHA(3, 1, 3, type="promotion", end_game=0.25)
    executor = ContractExecutor(scheduler, num_trials=9, curve=curve)
    executor.trials = [MemoryTrial(number, 0, State.RUNNING) for number in range(9)]
    for trial in executor.trials:
        executor.tell(trial, 1, trial.number / 8)
    executor.next_draw = 9

    while executor._take():
        for trial in executor.trials[:3]:  # the trials that are promoted
            if trial.state is State.RUNNING:
                executor.tell(trial, 3, 0.0)

    # Without an end game, the study takes 9 + 3 * 2 = 15 steps. The end game may take a quarter of
    # all steps, so the study takes at most 15 / 0.75 = 20 steps. A resumed trial takes 2 of the 5
    # steps that are left, so two more trials fit.
    running = [one.number for one in executor.trials if one.state is State.RUNNING]
    assert running == [3, 4]
    assert completed(executor) == 3


def _best(executor):
    entry = min(executor.rungs_by_key[RungKey(0, 1)].entries, key=lambda one: one.score)
    return entry.trial, entry.score


@pytest.mark.parametrize("seed", SEEDS)
def test_study_with_an_end_game_leaves_only_ended_or_paused_trials_after_mishaps(seed):
    executor = executor_of(seed, end_game=0.3, num_trials=40, brackets=2)

    executor.run(workers=4, mishaps=0.2)

    alive = [one for one in executor.trials if one.state not in FINAL]
    assert all(one.state is State.PAUSED for one in alive)
