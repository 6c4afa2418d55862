"""The points of a finite space are listed once each, in an order that depends on a seed."""

from itertools import islice

import pytest

from studydb.domain.canonical import params_hash
from studydb.domain.space.finite_points import finite_points
from studydb.domain.space.search_space import (
    Space,
    choice,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)

SPACE = Space.read(
    {
        "n": randint(3, 5),
        "model": {"log": lograndint(1, 7), "act": choice(["a", [1], None, {"b": 2}])},
        "q": quniform(0, 1, 0.3),
        "epochs": 27,
    }
)


def test_every_point_is_listed_once_and_fits_the_space():
    points = finite_points(SPACE)

    listed = list(points.in_order_of(seed=3))

    assert points.size == 3 * 7 * 4 * 4 == len(listed)
    assert len({params_hash(point) for point in listed}) == points.size
    assert all(SPACE.misfit(point) is None for point in listed)


def test_order_depends_on_the_seed():
    points = finite_points(SPACE)

    orders = [list(islice(points.in_order_of(seed), 20)) for seed in (1, 1, 2)]

    assert orders[0] == orders[1] != orders[2]


def test_value_that_is_given_twice_counts_once():
    assert finite_points(Space.read({"x": choice([1, 2, 1, 1.0, True])})).size == 3


@pytest.mark.parametrize("domain", [uniform(0, 1), loguniform(1, 2)])
def test_space_with_a_continuous_parameter_is_not_finite(domain):
    assert finite_points(Space.read({"n": randint(1, 2), "x": domain})) is None


def test_space_without_parameters_has_one_point():
    assert list(finite_points(Space.read({"epochs": 27})).in_order_of(0)) == [{}]


def test_large_space_is_listed_lazily():
    space = Space.read({f"n{k}": randint(0, 2**50) for k in range(20)})

    first = list(islice(finite_points(space).in_order_of(0), 1000))

    assert len({params_hash(point) for point in first}) == 1000
