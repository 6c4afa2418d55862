"""
Column types convert between Python's values and the values of each database.

Other tests are about constants that are written into SQL, and about a `Chain` of statements that
give one bind two defaults.
"""

import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

from studydb.db import Chain
from studydb.db.schema import study
from studydb.db.statement import compile_for
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


@pytest.mark.row("B3")
@given(documents)
def test_json_round_trips_with_numbers_that_are_not_finite(document):
    assert repr(decode_json(encode_json(document))) == repr(document)
    assert repr(decode_json(json.loads(dump_json(document)))) == repr(document)


@given(documents)
def test_stored_json_has_no_nan_or_infinity_constants(document):
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
def test_numbers_that_are_not_finite_become_texts_in_json_and_equal_texts_are_escaped(
    value, stored
):
    assert dump_json(value) == stored


@DIALECTS
def test_none_is_stored_as_sql_null(dialect):
    assert Json().process_bind_param(None, dialect) is None
    assert Json().process_result_value(None, dialect) is None


def to_database(column_type, value, dialect):
    codec = column_type.dialect_impl(dialect).bind_processor(dialect)
    return value if codec is None else codec(value)


def from_database(column_type, value, dialect):
    codec = column_type.dialect_impl(dialect).result_processor(dialect, None)
    return value if codec is None else codec(value)


@DIALECTS
@pytest.mark.parametrize("value", [0.5, -0.0, math.nan, math.inf, -math.inf, 5e-324, None])
def test_number_round_trips(dialect, value):
    stored = to_database(Number(), value, dialect)

    assert repr(from_database(Number(), stored, dialect)) == repr(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_sqlite_stores_nan_and_infinities_as_text(value):
    assert isinstance(to_database(Number(), value, sqlite.dialect()), str)


MOMENT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))


def test_time_is_stored_in_sqlite_as_text_in_utc_with_milliseconds():
    assert to_text(MOMENT) == "2026-01-01 10:30:00.123"
    assert to_database(UtcDateTime(), MOMENT, sqlite.dialect()) == "2026-01-01 10:30:00.123"


@given(st.lists(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)), min_size=2))  # noqa: DTZ001
def test_times_as_text_sort_by_time(moments):
    texts = [to_text(moment) for moment in sorted(moments)]

    assert texts == sorted(texts)


def test_time_that_is_read_is_in_utc_and_has_a_zone():
    by_sqlite = from_database(UtcDateTime(), "2026-01-01 10:30:00.123", sqlite.dialect())
    by_postgresql = from_database(UtcDateTime(), MOMENT, postgresql.dialect())

    assert by_sqlite == datetime(2026, 1, 1, 10, 30, 0, 123000, tzinfo=UTC)
    assert by_sqlite.tzinfo is by_postgresql.tzinfo is UTC
    assert by_postgresql == MOMENT


@DIALECTS
def test_time_without_a_zone_is_refused(dialect):
    with pytest.raises(ValueError, match="has no time zone; moments in the database are UTC"):
        to_database(UtcDateTime(), datetime(2026, 1, 1), dialect)  # noqa: DTZ001  the case tested


# --- constants and binds in SQL


def spelled(value):
    statement = sa.select(sa.literal(value).label("constant"))
    return compile_for(statement, psycopg.dialect(), spell_constants=True).numbered


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "NULL"), (True, "true"), (-3, "-3"), ("it's 5 %", "'it''s 5 %'")],
)
def test_constant_is_written_into_the_sql_and_is_no_bind(value, text):
    sql, binds = spelled(value)

    assert text in sql.decode()
    assert binds == ()


def test_float_as_a_constant_in_sql_is_refused():
    with pytest.raises(TypeError, match=r"0\.5 cannot be written into SQL"):
        spelled(0.5)


def test_chain_is_refused_if_its_statements_have_different_defaults_for_one_bind():
    first, then = (
        sa.update(study).values(seed=sa.bindparam("number", default)) for default in (1, 2)
    )

    with pytest.raises(ValueError, match="'number' has two defaults"):
        Chain(first.returning(study.c.id), then=then).whole(psycopg.dialect(), durable=True)
