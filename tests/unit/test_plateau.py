"""
The rule `Plateau` stops a trial or a study at the same result as Ray Tune's two stoppers.

`stop_of_trial` and `stop_of_study` compute at which result the stoppers stop. The last tests are
about the text and the JSON of the rule, wrong options, and the standard deviation.
"""

import math
from collections import deque
from random import Random

import numpy as np
import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.plateau import BestValues, Plateau, standard_deviation
from studydb.domain.life.rules import RuleWatch, read_rules, rule_from_json
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result
from studydb.domain.objective import Objective

LOSS = Objective("loss", Mode.MIN)


def results_of(values):
    return [Result(step, value, {}) for step, value in enumerate(values, 1)]


def stop_of_trial(values, *, std, num_results, grace_period, threshold):
    """The step at which Ray's TrialPlateauStopper (mode "min") stops; None if it never does."""
    recent = deque(maxlen=num_results)
    for step, value in enumerate(values, 1):
        recent.append(value)
        if step < grace_period or (threshold is not None and value > threshold):
            continue
        if np.std(recent) < std:
            return step
    return None


def stop_of_study(values, *, std, top, patience, is_max):
    """The number of the result at which Ray's ExperimentPlateauStopper stops, or None."""
    best, in_a_row = [], 0
    for step, value in enumerate(values, 1):
        best = sorted([*best, value], reverse=is_max)[:top]
        has_plateau = len(best) == top and np.std(best) <= std
        in_a_row = in_a_row + 1 if has_plateau else 0
        if has_plateau and in_a_row >= patience:
            return step
    return None


def some_values(rng):
    return [round(rng.choice([0.5, 0.5, 0.51, 0.4, rng.random()]), 3) for _ in range(30)]


@pytest.mark.parametrize("seed", range(40))
def test_trial_stops_where_rays_stopper_stops_it(seed):
    rng = Random(seed)
    options = {
        "std": rng.choice([0.0, 0.005, 0.05, 0.2]),
        "num_results": rng.randint(2, 5),
        "grace_period": rng.randint(0, 6),
        "threshold": rng.choice([None, 0.45]),
    }
    rule, history = Plateau("loss", **options), results_of(some_values(rng))

    stops = (n for n in range(1, 31) if rule.hit(history[:n], n, objective=LOSS))

    assert next(stops, None) == stop_of_trial([each.value for each in history], **options)


@pytest.mark.parametrize("seed", range(40))
def test_study_stops_where_rays_stopper_stops_it(seed):
    rng = Random(seed)
    options = {
        "std": rng.choice([0.0, 0.005, 0.05]),
        "top": rng.randint(1, 6),
        "patience": rng.randint(0, 4),
    }
    mode, values = rng.choice(list(Mode)), some_values(rng)
    rule, best, stopped = Plateau("loss", mode=str(mode), **options), BestValues(), None
    for step, result in enumerate(results_of(values), 1):
        best, stops = rule.after(best, [result], objective=LOSS)
        if stops and stopped is None:
            stopped = step

    assert stopped == stop_of_study(values, **options, is_max=mode is Mode.MAX)


@pytest.mark.parametrize("seed", range(20))
def test_may_hit_is_true_for_every_result_at_which_the_plateau_is_met(seed):
    rng = Random(seed)
    rule = Plateau("loss", num_results=rng.randint(2, 5), grace_period=rng.randint(0, 9))
    history, begins = results_of(some_values(rng)), rng.randint(0, 20)
    watch = RuleWatch([rule], LOSS)

    for n in range(begins + 1, 31):
        may_hit = watch.may_hit(history[n - 1])
        assert may_hit or not rule.hit(history[:n], n, objective=LOSS)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Plateau(metric=loss, std=0.5)", Plateau("loss", std=0.5)),
        ("Plateau(loss, top=10, patience=3)", Plateau("loss", top=10, patience=3)),
        (" Plateau(metric='val/loss', mode=max)", Plateau("val/loss", mode="max")),
    ],
)
def test_plateau_is_read_from_a_text_and_kept_in_json(text, rule):
    assert read_rules([text]) == (rule,)
    assert rule_from_json(rule.to_json()) == rule
    assert read_rules(str(rule)) == (rule,)
    assert read_rules(rule) == (rule,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Plateau()", "Cannot make Plateau"),
        ("Plateau(loss, sdt=3)", "has no argument 'sdt'"),
        ("Plateu(loss)", "There is no stop rule 'Plateu'"),
        ("Plateau(loss, std=-1)", "must be 0 or more"),
        ("Plateau(loss, num_results=1)", "num_results of 2 or more"),
        ("Plateau(loss, top=0)", "top of 1 or more"),
        ("Plateau(loss, patience=3)", "give top, too"),
        ("Plateau(loss, top=3, threshold=1)", "threshold is for trials"),
        ("Plateau(loss, mode=best)", "must be 'min' or 'max'"),
    ],
)
def test_wrong_plateau_is_refused(text, message):
    with pytest.raises(InvalidSpec, match=message):
        read_rules([text])


def test_standard_deviation_is_that_of_numpy():
    rng = Random(0)
    for n in range(1, 9):
        values = [rng.random() for _ in range(n)]
        assert standard_deviation(values) == pytest.approx(np.std(values), abs=1e-15)
    assert standard_deviation([1e200, -1e200]) == math.inf
    assert math.isnan(standard_deviation([1.0, math.inf]))
