"""ASHA by Syne Tune's rule: a trial stops if too many scores at its rung are better."""

from random import Random

import numpy as np
import pytest
from harness.contract_executor import ContractExecutor

from studydb.domain.life.decisions import Action
from studydb.schedulers import ASHA


def stops(scores, reduction_factor):
    """Compute with numpy whether Syne Tune's `Bracket` stops the trial with the last score."""
    rank = np.searchsorted(np.sort(scores), scores[-1]) / len(scores)
    return len(scores) > 1 and rank > 1 / reduction_factor


@pytest.mark.row("E3")
@pytest.mark.parametrize("reduction_factor", [1.1, 1.5, 2, 2.5, 3, 4, 7.3])
@pytest.mark.parametrize("highest", [3, 1000])
def test_trial_stops_if_the_share_of_better_scores_exceeds_1_over_the_reduction_factor(
    reduction_factor, highest
):
    rng = Random(reduction_factor * highest)
    scheduler = ASHA(max_t=2, reduction_factor=reduction_factor, rule="syne_tune")
    executor = ContractExecutor(
        scheduler, num_trials=300, curve=lambda *_: float(rng.randint(0, highest))
    )

    executor.run(workers=1)

    (rung,) = executor.rungs_by_key.values()
    scores = [entry.score for entry in rung.entries]
    found = [one.action is Action.STOP for _, step, one in executor.decisions if step == 1]
    assert len(scores) > 200
    assert found == [stops(scores[: n + 1], reduction_factor) for n in range(len(scores))]


def test_trial_is_compared_with_the_score_that_is_shown_as_its_cutoff():
    executor = ContractExecutor(
        ASHA(max_t=2, reduction_factor=2, rule="syne_tune"),
        num_trials=200,
        curve=lambda number, _: float(number * 37 % 101),
    )

    executor.run(workers=1)

    for number, step, decision in executor.decisions:
        if step == 1 and decision.cutoff is not None:
            worse = number * 37 % 101 > decision.cutoff
            assert (decision.action is Action.STOP) == worse


def test_rank_is_rounded_as_in_syne_tune():
    for n in range(2, 400):
        for reduction_factor in (2, 3, 7, 1.7, 10, 49, 103):
            share = 1 / reduction_factor
            most = max(m for m in range(n) if not m / n > share)

            at = _worst(n, reduction_factor)

            assert at == (most if most < n - 1 else None), (n, reduction_factor)


def _worst(n, reduction_factor):
    """
    The worst score with which a rung's n-th trial continues; None if it continues with any score.

    The n - 1 earlier scores are 0, 1, 2 and so on; 0 is the best.
    """
    scheduler = ASHA(max_t=2, reduction_factor=reduction_factor, rule="syne_tune")
    executor = ContractExecutor(scheduler, num_trials=1, curve=lambda *_: 0.0)
    rung = executor.rungs_by_key[scheduler.rungs()[0].key]
    rung.entries = [_Entry(float(rank)) for rank in range(n - 1)]
    return scheduler._worst_that_continues(rung.view(trial=-1))


class _Entry:
    ranked, trial, waiting = True, 0, False

    def __init__(self, score):
        self.score = score
