"""Stop rules of the kind `Threshold`: each compares one metric of a result with a bound."""

import math

import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.rules import Threshold, first_hit, read_rules
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result
from studydb.domain.objective import Objective

LOSS = Objective("loss", Mode.MIN)


def result(step=1, value=0.5, **metrics):
    return Result(step, value, metrics)


def hit(stop, one):
    return first_hit(read_rules(stop), [one], 1, objective=LOSS) is not None


@pytest.mark.parametrize(
    ("stop", "rules"),
    [
        (None, ()),
        ({}, ()),
        ({"loss": 3}, (Threshold("loss", ">=", 3.0),)),
        ({"training_iteration": 27}, (Threshold("training_iteration", ">=", 27.0),)),
        ("loss>=3", (Threshold("loss", ">=", 3.0),)),
        (["loss <= 3", "acc>0.9"], (Threshold("loss", "<=", 3.0), Threshold("acc", ">", 0.9))),
        ([" val/loss < 1e-3 "], (Threshold("val/loss", "<", 1e-3),)),
        ({"loss": "inf"}, (Threshold("loss", ">=", math.inf),)),
    ],
)
def test_rules_are_parsed_from_dicts_and_texts(stop, rules):
    assert read_rules(stop) == rules


@pytest.mark.parametrize("stop", ["loss", "loss=3", ">=3", "", "a b >= c d"])
def test_rule_that_is_not_a_comparison_is_refused(stop):
    with pytest.raises(InvalidSpec, match=r"is not a comparison; write for example 'loss>=3'"):
        read_rules(stop)


@pytest.mark.parametrize(
    "stop",
    [
        *({"loss": bound} for bound in (True, None, "three", math.nan, "nan", [1], 10**400)),
        *("loss>=", "loss>>3", "loss>=3>=4", "loss<nan"),
    ],
)
def test_rule_with_a_bound_that_is_not_a_number_is_refused(stop):
    with pytest.raises(InvalidSpec, match="for 'loss' needs a number"):
        read_rules(stop)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("loss>=0.5", True),
        ("loss>0.5", False),
        ("loss<=0.5", True),
        ("loss<0.5", False),
        ({"loss": 0.4}, True),
        ("training_iteration>=3", True),
        ("training_iteration>=4", False),
        ("acc>=0.9", True),
        ("deep/acc>=0.9", True),
        ("missing>=0", False),
        ("tag>=0", False),
        ("flag>=0", False),
        ("odd>=0", False),
        ("odd<0", False),
    ],
)
def test_rule_compares_the_metric_that_it_names(stop, expected):
    metrics = {"acc": 1, "deep/acc": 0.95, "tag": "9", "flag": True, "odd": math.nan}

    assert hit(stop, Result(3, 0.5, metrics)) == expected


def test_rule_on_the_studys_metric_reads_the_value_of_the_result_and_not_its_metrics():
    assert not hit("loss>=1", Result(1, 0.5, {"loss": 2.0}))


def test_first_rule_that_a_result_meets_is_returned():
    rules = read_rules(["acc>=1", "loss<1", "loss<2"])

    assert first_hit(rules, [result(value=0.5)], 1, objective=LOSS) == Threshold("loss", "<", 1.0)
    assert first_hit(rules, [result(value=5.0)], 1, objective=LOSS) is None


def test_rule_round_trips_as_json():
    (rule,) = read_rules("loss>=0.1")

    assert Threshold(**rule.to_json()) == rule
