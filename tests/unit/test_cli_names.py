"""Which names of studies and metrics are accepted."""

import pytest

from studydb.domain.errors import InvalidName, UsageError
from studydb.domain.text.names import check_metric_name, check_study_name


@pytest.mark.parametrize("name", ["a", "a" * 200, "größe 2", "-x", "a'b\"c\\d", "学习", ".."])
def test_valid_study_name_is_accepted(name):
    assert check_study_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty; give it 1 to 200 characters"),
        ("a" * 201, "has 201 characters; at most 200 are allowed"),
        ("a/b", "'a/b' holds a '/'"),
        (" a", "begins or ends with a space"),
        ("a ", "begins or ends with a space"),
        ("a\nb", r"'a\\nb' holds a character that cannot be printed"),
        ("a\x1b[31m", "cannot be printed"),
        ("a\u200eb", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        (7, "is 7, an int; give a text"),
    ],
)
def test_invalid_study_name_is_refused_with_the_reason(name, why):
    with pytest.raises(InvalidName, match=why) as refused:
        check_study_name(name)

    assert isinstance(refused.value, UsageError)
    assert len(str(refused.value)) < 160


@pytest.mark.parametrize("name", ["loss", "val/loss", "f1 score", "m" * 200])
def test_valid_metric_name_is_accepted(name):
    assert check_metric_name(name) == name


@pytest.mark.parametrize("name", ["", "m" * 201, 'a"b', "a'b", "a\\b", " a", "a\tb", None])
def test_invalid_metric_name_is_refused(name):
    with pytest.raises(InvalidName, match="metric name"):
        check_metric_name(name)
