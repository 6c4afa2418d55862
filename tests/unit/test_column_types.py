"""The codec between Python's values and each database's."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql, sqlite

from studydb.db.types import Json, Number, UtcDateTime, decode_json, dump_json, encode_json, to_text

DIALECTS = pytest.mark.parametrize("dialect", [postgresql.dialect(), sqlite.dialect()])

texts = st.one_of(
    st.text(),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "\\NaN", "\\\\Infinity", "nan", "\\", "+NaN"]),
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)


def alike(left, right):
    """Equal, NaN included, and of the same types all the way down."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return type(left) is type(right) and left == right


@given(documents)
def test_json_round_trips_with_numbers_that_are_not_finite(document):
    assert alike(document, decode_json(encode_json(document)))
    assert alike(document, decode_json(json.loads(dump_json(document))))


@given(documents)
def test_stored_json_is_strict(document):
    def refuse(name):
        raise AssertionError(name)

    json.loads(dump_json(document), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ("NaN", '"\\\\NaN"'),
        ({"a": (1, 2.5)}, '{"a":[1,2.5]}'),
        ({"NaN": 1}, '{"NaN":1}'),
    ],
)
def test_json_holds_the_names_that_postgresql_casts(value, stored):
    assert dump_json(value) == stored


@DIALECTS
def test_none_is_null_and_no_json(dialect):
    assert Json().process_bind_param(None, dialect) is None
    assert Json().process_result_value(None, dialect) is None


def bound(kind, value, dialect):
    codec = kind.dialect_impl(dialect).bind_processor(dialect)
    return value if codec is None else codec(value)


def read(kind, value, dialect):
    codec = kind.dialect_impl(dialect).result_processor(dialect, None)
    return value if codec is None else codec(value)


@DIALECTS
@pytest.mark.parametrize("value", [0.5, -0.0, math.nan, math.inf, -math.inf, 5e-324, None])
def test_number_round_trips(dialect, value):
    stored = bound(Number(), value, dialect)

    found = read(Number(), stored, dialect)
    assert str(found) == str(value)
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_sqlite_holds_as_text_what_it_would_lose_as_a_double(value):
    assert isinstance(bound(Number(), value, sqlite.dialect()), str)


MOMENT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))


def test_moment_is_text_in_utc_as_sqlite_writes_it():
    assert to_text(MOMENT) == "2026-01-01 10:30:00.123"
    assert bound(UtcDateTime(), MOMENT, sqlite.dialect()) == "2026-01-01 10:30:00.123"


@given(st.lists(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)), min_size=2))  # noqa: DTZ001
def test_moments_as_text_are_in_their_order(moments):
    texts = [to_text(moment) for moment in sorted(moments)]

    assert texts == sorted(texts)


def test_moment_is_read_aware_and_in_utc():
    by_sqlite = read(UtcDateTime(), "2026-01-01 10:30:00.123", sqlite.dialect())
    by_postgresql = read(UtcDateTime(), MOMENT, postgresql.dialect())

    assert by_sqlite == datetime(2026, 1, 1, 10, 30, 0, 123000, tzinfo=UTC)
    assert by_sqlite.tzinfo is by_postgresql.tzinfo is UTC
    assert by_postgresql == MOMENT


@DIALECTS
def test_naive_moment_is_refused(dialect):
    with pytest.raises(ValueError, match="has no time zone; moments in the database are UTC"):
        bound(UtcDateTime(), datetime(2026, 1, 1), dialect)  # noqa: DTZ001  the point
