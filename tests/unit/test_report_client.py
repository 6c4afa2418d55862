"""The client of `studydb report`: how it reads its arguments, and the JSON that it sends."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studydb.report_client import as_json, read_arguments

VALUES = st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False)


@pytest.mark.nightly
@given(st.dictionaries(st.text(), VALUES))
def test_json_of_a_report_is_read_as_the_same_report(report):
    assert json.loads(as_json(report)) == report


def test_nan_and_lone_surrogates_are_sent():
    sent = json.loads(as_json({"error": math.nan, "text": "\udcff"}))

    assert math.isnan(sent["error"])
    assert sent["text"] == "\udcff"


def test_arguments_become_numbers_texts_step_and_checkpoint():
    message = read_arguments(["error=nan", "n=3", "name=a=b", "--step=7", "--save"])

    assert math.isnan(message.pop("error"))
    assert message == {"n": 3, "name": "a=b", "training_iteration": 7, "checkpoint": True}


def test_words_true_and_false_become_booleans_and_other_words_stay_texts():
    message = read_arguments(["error=1", "done=false", "flag=true", "name=TRUE", "other=no"])

    assert message == {"error": 1, "done": False, "flag": True, "name": "TRUE", "other": "no"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["error=1", "error=2"],
        ["error=1", "error=1"],
        ["error=1", "--step", "1", "--step=2"],
        ["error=1", "training_iteration=1", "--step=1"],
    ],
)
def test_name_that_is_given_twice_is_refused(arguments):
    with pytest.raises(ValueError, match="is given twice"):
        read_arguments(arguments)


@pytest.mark.parametrize(
    "arguments",
    [["error"], ["=1"], ["-x=1"], ["error=1", "--step", "x"], [], ["error=1", "checkpoint=x"]],
)
def test_arguments_that_are_no_report_are_refused(arguments):
    with pytest.raises(ValueError, match=r"METRIC=VALUE|--step|at least one metric|--save"):
        read_arguments(arguments)
