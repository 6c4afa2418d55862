"""How the command line writes values."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studydb.cli.formatting import assignments, csv_cell, plain, table_cell, value_text
from studydb.domain.life.states import State
from studydb.domain.space.parameters import parse_parameters
from studydb.domain.specs.grammar import parse_value
from studydb.domain.text.display import visible

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (Decimal("NaN"), "NaN"),
        (Decimal(12), 12),
        (Decimal("0.5"), 0.5),
        (MOMENT, "2026-01-02T03:04:05.678000+00:00"),
        (MOMENT.astimezone(timezone(timedelta(hours=2))), "2026-01-02T03:04:05.678000+00:00"),
        (datetime(2026, 1, 2), "2026-01-02T00:00:00"),  # noqa: DTZ001  without a zone
        (b"\x00\xff", "00ff"),
        (State.RUNNING, "RUNNING"),
        (
            {"a": [math.nan, {"b": MOMENT}]},
            {"a": ["NaN", {"b": "2026-01-02T03:04:05.678000+00:00"}]},
        ),
        (timedelta(seconds=1), "0:00:01"),
    ],
)
def test_value_without_a_json_form_becomes_a_text_or_a_number(value, written):
    assert plain(value) == written
    json.dumps(plain(value), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, ""),
        (True, "true"),
        (0.1, 0.1),
        (math.nan, "NaN"),
        ({"a": 1}, '{"a": 1}'),
        ("a,b", "a,b"),
    ],
)
def test_csv_cell_is_empty_for_none_and_json_for_booleans_and_dicts(value, written):
    assert csv_cell(value) == written


def test_table_cell_keeps_all_digits_unless_brief():
    assert table_cell(0.1 + 0.2) == "0.30000000000000004"
    assert table_cell(0.1 + 0.2, brief=True) == "0.3"
    assert table_cell(MOMENT) == "2026-01-02 03:04:05Z"
    assert table_cell({"lr": 0.1, "act": "relu"}) == "lr=0.1 act=relu"


def test_control_characters_are_escaped():
    assert visible("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert table_cell("größe\t") == "größe\\t"


@given(VALUES)
def test_formatted_value_parses_to_an_equal_value(value):
    assert parse_value(value_text(value)) == value


@given(st.dictionaries(st.sampled_from(["lr", "net/act", "a b"]), VALUES, min_size=1))
def test_formatted_parameter_parses_to_an_equal_value(values):
    texts = [assignments({path: value}) for path, value in values.items()]

    tree = parse_parameters(texts)

    flat = dict.fromkeys(values, tree)
    for path in values:
        for key in path.split("/"):
            flat[path] = flat[path][key]
    assert flat == values
