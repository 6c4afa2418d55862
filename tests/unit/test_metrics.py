"""Reports, scores, and summaries of results."""

import math

import numpy as np
import pytest

from studydb.domain.errors import InvalidReport
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result, Summary, read_report
from studydb.domain.objective import Objective
from studydb.domain.tally import Tally


def read(report, *, metric="loss", last_step=0):
    return read_report(report, metric=metric, last_step=last_step)


# --- one report


def test_report_is_split_into_step_value_and_other_metrics():
    assert read({"loss": 0.5, "acc": 1, "training_iteration": 3}) == Result(3, 0.5, {"acc": 1})


def test_report_without_a_step_gets_the_next_step():
    assert read({"loss": 0.5}, last_step=4).step == 5


def test_nested_metric_names_are_joined_by_slashes():
    report = {"val": {"loss": 0.5, "deep": {"er": 1}}, "a/b": 2}

    assert read(report, metric="val/loss") == Result(1, 0.5, {"val/deep/er": 1, "a/b": 2})


@pytest.mark.parametrize(
    "value", [1, 0.5, np.float32(0.5), np.float64(0.5), np.int64(3), np.array(2)]
)
def test_value_of_the_study_metric_becomes_a_float(value):
    found = read({"loss": value}).value

    assert (found, type(found)) == (float(value), float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_study_metric_may_be_nan_or_infinite(value):
    assert str(read({"loss": value}).value) == str(value)


@pytest.mark.parametrize("step", [3, 3.0, np.int64(3), np.float64(3.0)])
def test_step_may_be_a_float_or_numpy_number_without_a_fraction(step):
    found = read({"loss": 0.5, "training_iteration": step}).step

    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    ("why", "steps"),
    [
        (
            "a step is an integer that rises from 1",
            [1.5, "3", True, None, math.nan, math.inf, [5]],
        ),
        ("which is not above 4; steps must rise", [4, 3, 0, -1]),
        ("more than 62 bits", [2**62, -(2**62), -(10**300)]),
    ],
)
def test_step_that_is_not_a_rising_integer_is_refused_with_a_value_error(why, steps):
    assert issubclass(InvalidReport, ValueError)
    for step in steps:
        with pytest.raises(InvalidReport, match=why):
            read({"loss": 0.5, "training_iteration": step}, last_step=4)


@pytest.mark.parametrize(
    ("done", "is_last"),
    [(True, True), (False, False), (1, True), (0, False), (np.bool_(True), True), (0.0, False)],
)
def test_done_is_a_boolean_or_0_or_1(done, is_last):
    found = read({"loss": 0.5, "done": done})

    assert found.is_last is is_last
    assert found.metrics == {}


@pytest.mark.parametrize("done", ["false", "no", "", None, 2, math.nan, [], [1]])
def test_done_that_is_neither_a_boolean_nor_0_or_1_is_refused(done):
    with pytest.raises(InvalidReport, match=r"'done' is .*; it must be true or false"):
        read({"loss": 0.5, "done": done})


@pytest.mark.parametrize(
    "report", [{"a": {"b": 1}, "a/b": 2}, {"a/b": 2, "a": {"b": 1}}, {1: 1, "1": 2}]
)
def test_two_metrics_of_the_same_name_are_refused(report):
    with pytest.raises(InvalidReport, match=r"two metrics with the name '(a/b|1)'"):
        read({"loss": 0.5, **report})


@pytest.mark.row("A19")
def test_refusal_of_a_report_without_the_study_metric_lists_its_other_metrics():
    with pytest.raises(
        InvalidReport, match="at step 1 has no 'loss', the study's metric; it has 'acc'"
    ):
        read({"acc": 1})
    with pytest.raises(InvalidReport, match="it has nothing"):
        read({})


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], np.array([0.5, 1]), np.bool_(True)])
def test_study_metric_that_is_not_a_number_is_refused(value):
    with pytest.raises(InvalidReport, match="the study's metric must be a number"):
        read({"loss": value})


@pytest.mark.parametrize("report", [None, 0.5, [("loss", 0.5)], "loss"])
def test_report_that_is_not_a_dict_is_refused(report):
    with pytest.raises(InvalidReport, match="give a dict such as"):
        read(report)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (True, True),
        ("a", "a"),
        ("a\nb", "a\nb"),
        ("é😀", "é😀"),
        ((1, 2), [1, 2]),
        ([1, [2.5, None]], [1, [2.5, None]]),
        ([{"a": 1}], [{"a": 1}]),
        (np.arange(3), [0, 1, 2]),
        (np.bool_(True), True),
        (2**100, 2**100),
        (2**1023, 2.0**1023),
    ],
)
def test_other_metrics_become_json_values(value, stored):
    assert read({"loss": 0.5, "m": value}).metrics == {"m": stored}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "is an object, which JSON cannot hold"),
        (1j, "is a complex"),
        (b"x", "is a bytes"),
        ({1, 2}, "is a set"),
        ([object()], "is an object"),
        ("\ud800", "not Unicode"),
        ("a\0b", "a NUL character"),
        (10**400, "too large for a double"),
        (10**5000, "too large for a double"),
        ([-(10**400)], "too large for a double"),
    ],
    ids=range(10),
)
def test_metric_that_json_or_sql_cannot_hold_is_refused(value, why):
    with pytest.raises(InvalidReport, match=f"'m'.* {why}|'m' is {why}"):
        read({"loss": 0.5, "m": value})


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
def test_metric_name_that_sql_cannot_hold_is_refused(name):
    with pytest.raises(InvalidReport):
        read({"loss": 0.5, name: 1})


def test_study_metric_too_large_for_a_double_is_refused():
    with pytest.raises(InvalidReport, match="'loss' is an integer too large for a double"):
        read({"loss": 10**400})


# --- scores


@pytest.mark.parametrize(
    ("value", "mode", "expected"),
    [
        (0.5, Mode.MIN, 0.5),
        (0.5, Mode.MAX, -0.5),
        (math.inf, Mode.MIN, math.inf),
        (math.inf, Mode.MAX, -math.inf),
        (math.nan, Mode.MIN, math.inf),
        (math.nan, Mode.MAX, math.inf),
    ],
)
def test_lower_scores_are_better_and_nan_is_worst(value, mode, expected):
    assert Objective("loss", mode).score(value) == expected


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_and_minus_zero_have_the_same_score(zero, mode):
    assert math.copysign(1, Objective("loss", mode).score(zero)) == 1


# --- summaries


def summary_of(*values, mode=Mode.MIN):
    summary = Summary()
    for step, value in enumerate(values, 1):
        summary = summary.add([Result(step, value, {})], Objective("loss", mode))
    return summary


def test_first_of_equal_values_stays_the_best():
    assert summary_of(2.0, 1.0, 1.0, 3.0) == Summary(4, 4, 3.0, 1.0, 2, 1.0)


def test_best_value_depends_on_the_mode():
    assert summary_of(2.0, 1.0, 3.0, mode=Mode.MAX) == Summary(3, 3, 3.0, 3.0, 3, -3.0)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("values", [(math.nan, None), (None, math.nan)])
def test_worst_infinity_is_better_than_nan(values, mode):
    worst = math.inf if mode is Mode.MIN else -math.inf

    summary = summary_of(*(worst if value is None else value for value in values), mode=mode)

    assert summary.best_value == worst
    assert summary.rank_score == math.inf


def test_trial_without_results_or_with_only_nan_has_no_rank_score():
    assert Summary().rank_score is None
    assert summary_of(math.nan, math.nan).rank_score is None
    assert summary_of(math.nan).n_results == 1


def test_each_metric_is_summarized_over_the_steps_that_have_it():
    results = [
        Result(1, 4.0, {"acc": 1, "tag": "x", "flag": True, "late": None}),
        Result(2, 2.0, {"acc": math.nan, "late": 5}),
    ]

    found = Tally("loss").analysis(results)

    assert found["loss"] == {"min": 2.0, "max": 4.0, "avg": 3.0, "last": 2.0}
    assert found["late"] == {"min": 5.0, "max": 5.0, "avg": 5.0, "last": 5.0}
    assert found.keys() == {"loss", "acc", "late"}
    assert (found["acc"]["avg"], math.isnan(found["acc"]["last"])) == (1.0, True)


def test_average_is_exact_but_nan_if_values_are_infinite():
    exact = Tally("loss").analysis([Result(step, 0.1, {}) for step in range(1, 11)])
    odd = Tally("loss").analysis([Result(1, math.inf, {}), Result(2, -math.inf, {})])

    assert exact["loss"]["avg"] == 0.1
    assert math.isnan(odd["loss"]["avg"])
    assert (odd["loss"]["min"], odd["loss"]["max"]) == (-math.inf, math.inf)


# --- metrics that are nested, large, or of derived classes


def nested(depth, kind):
    value = 0.5
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_metric_nested_more_than_32_levels_deep_is_refused(kind):
    assert read({"loss": 0.5, "deep": nested(32, kind)})

    endless = {}
    endless["again"] = [endless]
    for deep in (nested(33, kind), nested(900, kind), nested(100_000, kind), endless):
        with pytest.raises(InvalidReport, match="more than 32 levels deep"):
            read({"loss": 0.5, "deep": deep})


@pytest.mark.parametrize(
    ("number", "kind"),
    [(2**63 - 1, int), (-(2**63) + 1, int), (2**63, float), (-(2**63), float), (10**300, float)],
)
def test_integer_whose_magnitude_has_64_bits_or_more_becomes_the_nearest_double(number, kind):
    (found,) = read({"loss": 0.5, "n": number}).metrics.values()

    assert (found, type(found)) == (kind(number), kind)


def test_metrics_of_derived_classes_become_values_of_builtin_types():
    class Text(str):
        __slots__ = ()

    class Whole(int):
        pass

    given = {"f": np.float64(0.5), "s": Text("x"), "i": Whole(3), "l": [np.float64(1), Text("y")]}

    found = read({"loss": 0.5, **given}).metrics

    assert [type(value) for value in found.values()] == [float, str, int, list]
    assert [type(item) for item in found["l"]] == [float, str]
