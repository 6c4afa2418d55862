"""A PostgreSQL server reads a `DoubleArray`, which is binary, as it reads the array's text."""

import math

import pytest

from studydb.db.double_array import DoubleArray, DoubleArrayDumper
from studydb.db.silence import BoundedConnection

QUERY = "SELECT %s::float8[]::text"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [0.1, None, -0.0, 5e-324, 1.7976931348623157e308],
        [math.nan, math.inf, -math.inf],
    ],
)
def test_server_reads_the_same_from_a_binary_array_as_from_the_text_of_the_array(
    postgres_server, values
):
    with BoundedConnection.connect(postgres_server) as connection:
        connection.adapters.register_dumper(DoubleArray, DoubleArrayDumper)
        received = connection.execute(QUERY, [DoubleArray.of(values)]).fetchone()
        expected = connection.execute(QUERY, [values]).fetchone()

    assert received == expected
