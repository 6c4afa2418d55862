"""`study.best` by metric, mode and scope; the checkpoints of trials; the errors of a study."""

import json
import math

import numpy as np
import pytest

import studydb
from studydb.analysis.best_by import find_best
from studydb.domain.errors import InvalidName, InvalidSpec, NoResults

CURVES = {
    0: [0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9],
    1: [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.2],
    2: [0.9, 0.9, 0.3, 0.3, 0.3, 0.3, 0.3, 0.9, 0.9, 0.9, 0.3, 0.5],
    3: [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3, 0.6, 0.6, 0.5, 0.5],
    4: [math.nan] * 12,
}
"""The losses that each trial reports, by the number of the trial."""


@pytest.fixture
def study(create_study, storage_url):
    made = create_study("own", num_trials=6, storage=storage_url)
    for number, losses in CURVES.items():
        with made.ask() as trial:
            for step, loss in enumerate(losses):
                trial.report({"loss": loss, "sub": {"size": 10 * number - step}})
    return made


@pytest.mark.row("D9")
@pytest.mark.parametrize(
    ("asked", "number"),
    [
        ({}, 0),
        ({"scope": "all"}, 0),
        ({"scope": "last"}, 1),
        ({"scope": "avg"}, 2),
        ({"scope": "last-5-avg"}, 3),
        ({"scope": "last-10-avg"}, 2),
        ({"mode": "max"}, 0),
        ({"mode": "max", "scope": "last-5-avg"}, 0),
        ({"metric": "sub/size", "mode": "max"}, 4),
        ({"metric": "sub/size", "mode": "min", "scope": "last"}, 0),
        ({"metric": "sub/size", "mode": "min", "scope": "avg"}, 0),
        ({"metric": "loss", "scope": "last"}, 1),
    ],
)
def test_best_trial_is_found_by_metric_mode_and_scope(study, asked, number):
    assert study.best(**asked).number == number


def test_best_command_prints_the_value_of_each_scope(study, console):
    found = {
        scope: json.loads(console("best", "own", "--scope", scope, "--format", "json").out)
        for scope in ("last", "avg", "last-5-avg", "last-10-avg")
    }

    expected = {
        "last": CURVES[1][-1],
        "avg": sum(CURVES[2]) / 12,
        "last-5-avg": sum(CURVES[3][-5:]) / 5,
        "last-10-avg": sum(CURVES[2][-10:]) / 10,
    }
    assert {scope: one["value"] for scope, one in found.items()} == pytest.approx(expected)
    assert found["avg"]["scope"] == "avg"
    table = console("best", "own", "--metric", "sub/size", "--mode", "max").lines
    assert table[0].split() == ["best", "sub/size", "(max)", "40"]
    assert console("best", "own").lines[0].split() == ["best", "loss", "(min)", "0.1"]


def test_invalidated_trial_is_not_the_best(study):
    study.invalidate(1, reason="wrong labels")

    assert study.best(scope="last").number == 2


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"scope": "first"}, InvalidSpec, "'last-10-avg'"),
        ({"metric": "sub/size"}, InvalidSpec, "mode is missing"),
        ({"metric": np.array([1, 2])}, InvalidName, r"The metric name is array\(\[1, 2\]\)"),
        ({"metric": "", "mode": "min"}, InvalidName, "The metric name is empty"),
        ({"mode": "least"}, InvalidSpec, "mode is 'least'"),
        ({"mode": np.array([1, 2])}, InvalidSpec, r"mode is array\(\[1, 2\]\)"),
        ({"metric": "none", "mode": "min"}, NoResults, "The metrics are: 'loss', 'sub/size'"),
        ({"scop": "last"}, TypeError, "scope"),
    ],
)
def test_wrong_arguments_are_refused(study, asked, error, says):
    with pytest.raises(error, match=says):
        study.best(**asked)


@pytest.mark.parametrize(
    ("values", "scope", "expected"),
    [
        ([1e308, 1e308, 1e308], "avg", 1e308),
        ([math.inf, 1.0], "avg", math.inf),
        ([1e308, 1e308, -math.inf], "avg", -math.inf),
        ([0.5, math.nan], "avg", 0.5),
        ([0.5, math.nan], "all", 0.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "last-5-avg", 4.0),
        ([2.0], "last-10-avg", 2.0),
    ],
)
def test_value_of_a_scope_is_right_for_nan_infinity_huge_and_few_values(
    create_study, storage_url, values, scope, expected
):
    made = create_study("edge", num_trials=1, storage=storage_url)
    with made.ask() as trial:
        for value in values:
            trial.report({"loss": value})

    found = find_best(made.database, made.record, None, None, scope)

    assert found.value == expected


def test_trial_whose_value_in_the_scope_is_nan_is_not_the_best(create_study, storage_url):
    made = create_study("nan", num_trials=1, storage=storage_url)
    with made.ask() as trial:
        trial.report({"loss": 0.5})
        trial.report({"loss": math.nan})

    assert made.best(scope="avg").number == 0
    with pytest.raises(NoResults, match="has a value of 'loss' in the scope 'last' yet; NaN"):
        made.best(scope="last")


@pytest.mark.row("D9")
def test_trial_has_its_last_and_best_checkpoint_and_the_study_has_the_errors_of_its_trials(
    create_study, storage_url
):
    keep = studydb.Keep(last=1, best=1)
    made = create_study(
        "saved", num_trials=3, storage=storage_url, keep=keep, checkpoints="inline:"
    )
    for values in ([0.5, 0.1, 0.7, 0.9], [0.4]):
        with made.ask() as trial:
            for value in values:
                saved = {"value": value} if len(values) > 1 else None
                trial.report({"loss": value}, checkpoint=saved)
    made.ask().fail(ValueError("too large"))

    best = made.best(scope="last")
    first = made.trial(0)

    assert best.number == 1
    assert (best.checkpoint, best.best_checkpoint) == (None, None)
    assert first.checkpoint.to_dict() == {"value": 0.9}
    assert first.best_checkpoint.to_dict() == {"value": 0.1}
    assert made.errors == {2: "ValueError: too large"}
    assert list(made.trials_dataframe().number) == [0, 1, 2]
    assert len(made.results_dataframe()) == 5
