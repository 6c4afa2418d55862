"""
Random and grid search: the params of a draw, the size of a grid, and the searchers' specs.

The params depend on space, seed and draw alone, so they are the same in every process.
"""

import hashlib
import subprocess
import sys
import time
from itertools import product

import numpy as np
import pytest
from harness.refusal import check_refused

from studydb.domain.space.search_space import (
    Space,
    choice,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.specs.grammar import parse_call
from studydb.searchers import GridSearch, RandomSearch, from_call, read
from studydb.searchers.draws import unit_draw

SPACE = Space.read(
    {
        "lr": loguniform(1e-4, 1.0),
        "model": {"width": randint(1, 4), "act": choice(["relu", "tanh"])},
        "epochs": 27,
    }
)


def points(space, count=50, seed=7):
    return [RandomSearch().propose(space, seed=seed, draw=draw) for draw in range(count)]


def test_proposed_params_are_nested_and_without_constants():
    point = RandomSearch().propose(SPACE, seed=0, draw=0)

    assert list(point) == ["lr", "model"]
    assert list(point["model"]) == ["width", "act"]


def test_proposed_values_never_change_between_versions():
    assert RandomSearch().propose(SPACE, seed=0, draw=0) == {
        "lr": 0.6337239784955337,
        "model": {"width": 1, "act": "tanh"},
    }


def test_params_do_not_depend_on_the_process_or_the_order_of_draws():
    script = (
        "from studydb.domain.space.search_space import Space\n"
        "from studydb.searchers import RandomSearch\n"
        f"space = Space.from_json({SPACE.to_json()!r})\n"
        "print([RandomSearch().propose(space, seed=7, draw=d) for d in reversed(range(50))])"
    )

    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert other.stdout.strip() == repr(points(SPACE)[::-1])


def test_another_seed_or_draw_gives_other_params():
    assert len({repr(point) for point in points(SPACE)}) == 50
    assert points(SPACE, seed=7) != points(SPACE, seed=8)


def test_new_parameter_does_not_change_the_values_of_other_parameters():
    wider = Space.read({"first": uniform(0, 1), "lr": loguniform(1e-4, 1.0)})

    assert [point["lr"] for point in points(wider)] == [point["lr"] for point in points(SPACE)]


def test_parameters_are_independent_of_each_other():
    space = Space.read({"a": uniform(0, 1), "b": uniform(0, 1)})

    drawn = np.array([(point["a"], point["b"]) for point in points(space, 2000)])

    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.1
    assert np.allclose(drawn.mean(axis=0), 0.5, atol=0.03)


def test_random_number_is_computed_from_the_first_word_of_numpys_philox():
    path_key = int.from_bytes(hashlib.sha256(b"model/width").digest()[:8], "little")
    stream = np.random.Philox(key=np.array([3, path_key], dtype=np.uint64), counter=5)

    assert unit_draw(seed=3, path="model/width", draw=5) == (stream.random_raw() >> 11) / 2**53


def test_proposal_takes_less_than_50_microseconds_per_parameter():
    space = Space.read({f"p{index}": loguniform(1e-4, 1.0) for index in range(20)})
    search = RandomSearch()
    search.propose(space, seed=0, draw=0)

    best_s = min(_time_of(lambda: search.propose(space, seed=0, draw=1)) for _ in range(50))

    assert best_s / len(space.parameters) < 50e-6


def _time_of(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_empty_space_gives_empty_params_for_any_number_of_draws():
    space = Space.read(None)

    assert RandomSearch().size(space) is None
    assert RandomSearch().propose(space, seed=0, draw=10**9) == {}


def test_unit_draw_accepts_a_negative_seed_and_one_of_more_than_64_bits():
    for seed in (-1, 2**70, 0):
        assert 0 <= unit_draw(seed=seed, path="lr", draw=2**40) < 1


def test_grid_is_the_product_of_all_values_and_the_last_parameter_changes_fastest():
    space = Space.read(
        {"a": choice(["x", "y"]), "m": {"b": randint(1, 3)}, "c": quniform(0, 1, 0.5)}
    )
    grid = GridSearch()

    walked = [grid.propose(space, seed=0, draw=draw) for draw in range(grid.size(space))]

    expected = product(["x", "y"], [1, 2, 3], [0.0, 0.5, 1.0])
    assert walked == [{"a": a, "m": {"b": b}, "c": c} for a, b, c in expected]


def test_draw_outside_the_grid_raises_index_error():
    space = Space.read({"a": randint(1, 3)})

    for draw in (3, -1):
        with pytest.raises(IndexError, match="no point"):
            GridSearch().propose(space, seed=0, draw=draw)


def test_grid_of_an_empty_space_has_one_point():
    space = Space.read({"epochs": 3})

    assert GridSearch().size(space) == 1
    assert GridSearch().propose(space, seed=0, draw=0) == {}


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"m": {"lr": loguniform(1e-4, 1)}}, ["'m/lr'", "loguniform", "choice"]),
        ({"n": lograndint(1, 9)}, ["'n'", "choice"]),
        ({"n": randint(0, 100_000)}, ["'n'", "100,001"]),
        ({name: randint(1, 10_000) for name in "abc"}, ["1,000,000,000,000", "RandomSearch"]),
    ],
)
def test_space_that_a_grid_cannot_enumerate_is_refused(mapping, words):
    check_refused(words, GridSearch().size, Space.read(mapping))


@pytest.mark.parametrize("searcher", [RandomSearch(), RandomSearch(seed=5), GridSearch(seed=2)])
def test_searchers_round_trip_as_json(searcher):
    assert read(searcher.to_json()) == searcher


def test_stored_null_is_read_as_no_searcher_and_a_spec_without_a_name_is_refused():
    assert read(None) is None
    check_refused(["no name"], read, {"seed": 1})


def test_searcher_is_made_from_a_call():
    assert from_call(parse_call("RandomSearch(seed=0)")) == RandomSearch(seed=0)
    assert from_call(parse_call("RandomSearch(3)")).seed == 3
    assert from_call(parse_call("GridSearch")) == GridSearch()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RandmSearch()", ["'RandmSearch'", "Did you mean 'RandomSearch'"]),
        ("gridsearch", ["Did you mean 'GridSearch'"]),
        ("RandomSearch(sed=1)", ["'sed'", "Did you mean 'seed'"]),
        ("RandomSearch(seed=-1)", ["-1", "0 to"]),
        ("RandomSearch(seed=x)", ["'x'"]),
        ("RandomSearch(seed=true)", ["True"]),
        ("RandomSearch(1, 2)", ["too many"]),
    ],
)
def test_wrong_call_of_a_searcher_is_refused(text, words):
    check_refused(words, from_call, parse_call(text))


def test_numpy_seed_is_stored_as_an_int():
    assert RandomSearch(seed=np.int64(4)).to_json() == {"name": "RandomSearch", "seed": 4}
    assert type(RandomSearch(seed=np.int64(4)).seed) is int
