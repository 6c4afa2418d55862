"""Properties of spaces, of the values that distributions give, and of the grammar of specs."""

import json
import math
from statistics import median

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from studydb.domain.canonical import canonical_json, params_hash
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.parameters import parse_parameter, parse_parameters
from studydb.domain.space.search_space import (
    Enumerable,
    Space,
    choice,
    constant,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.specs.grammar import parse_call, parse_value
from studydb.searchers import GridSearch, RandomSearch
from studydb.searchers.draws import unit_draw

NO_DEADLINE = settings(deadline=None)  # a slow example on a busy machine must not fail

units = st.integers(0, 2**53 - 1).map(lambda number: number * 2.0**-53)
finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | finite.map(lambda x: x + 0.0)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def _domains_of(make, *arguments):
    def attempt(values):
        try:
            return make(*values)
        except InvalidSpec:
            return None

    return st.tuples(*arguments).map(attempt).filter(lambda domain: domain is not None)


positive = st.floats(min_value=5e-324, max_value=1.7e308)
whole = st.integers(-(2**40), 2**40)
domains = st.one_of(
    _domains_of(lambda a, b: uniform(min(a, b), max(a, b)), finite, finite),
    _domains_of(lambda a, b: loguniform(min(a, b), max(a, b)), positive, positive),
    _domains_of(
        lambda a, width, q: quniform(a, a + width, q),
        st.floats(-1e6, 1e6),
        st.floats(1e-3, 1e6),
        st.sampled_from([0.1, 0.05, 0.3, 1, 7, 1e-3, 2.5]),
    ),
    _domains_of(lambda a, b: randint(min(a, b), max(a, b)), whole, whole),
    _domains_of(lambda a, b: lograndint(min(a, b), max(a, b)), whole.map(abs), whole.map(abs)),
    st.lists(plain_values, min_size=1, max_size=6).map(choice),
)
names = texts.filter(lambda name: name and "/" not in name and not name.startswith("$"))
trees = st.recursive(
    st.dictionaries(
        names,
        domains
        | plain_values.filter(lambda v: not isinstance(v, dict)).map(
            lambda v: constant(v) if isinstance(v, list) else v
        ),
        max_size=4,
    ),
    lambda inner: st.dictionaries(names, domains | inner, max_size=3),
    max_leaves=6,
)


@given(domains, units)
@NO_DEADLINE
def test_every_value_of_a_distribution_is_contained_in_it(domain, u):
    value = domain.from_unit(u)

    assert domain.contains(value)
    assert canonical_json(domain.cast(value)) == canonical_json(value)
    assert type(domain.cast(value)) is type(value)


@given(domains, units, units)
@NO_DEADLINE
def test_larger_random_number_gives_an_equal_or_larger_value(domain, u, v):
    assume(not isinstance(domain, type(choice([1]))))

    low, high = sorted((u, v))

    assert domain.from_unit(low) <= domain.from_unit(high)


@given(domains)
@NO_DEADLINE
def test_enumerable_distribution_gives_its_first_and_its_last_value(domain):
    assume(isinstance(domain, Enumerable))

    first, last = domain.from_unit(0.0), domain.from_unit(1 - 2**-53)

    assert first == domain.at(0)
    assert last == domain.at(domain.size - 1)


@given(st.floats(-1e5, 1e5), st.floats(1e-2, 1e5), st.sampled_from([0.1, 0.05, 0.3, 2.5]), units)
@NO_DEADLINE
def test_quniform_gives_multiples_inside_its_bounds(lower, width, q, u):
    try:
        domain = quniform(lower, lower + width, q)
    except InvalidSpec:
        assume(False)

    value = domain.from_unit(u)

    assert lower <= value <= lower + width
    assert math.isclose(value, round(value / q) * q, rel_tol=1e-9, abs_tol=1e-9)


@given(st.integers(-50, 50), st.integers(1, 6), st.integers(0, 2**63 - 1))
@NO_DEADLINE
def test_randint_gives_every_value_of_a_small_range(lower, width, seed):
    domain = randint(lower, lower + width)

    drawn = {domain.from_unit(unit_draw(seed=seed, path="x", draw=n)) for n in range(300)}

    assert drawn == set(range(lower, lower + width + 1))


@given(st.integers(-300, 290), st.integers(1, 10), st.integers(0, 2**63 - 1))
@settings(NO_DEADLINE, max_examples=30)
def test_median_of_loguniform_is_near_the_geometric_mean_of_its_bounds(exponent, decades, seed):
    domain = loguniform(10.0**exponent, 10.0 ** (exponent + decades))

    drawn = [domain.from_unit(unit_draw(seed=seed, path="x", draw=n)) for n in range(400)]

    middle = (math.log10(median(drawn)) - exponent) / decades
    assert 0.35 < middle < 0.65


@given(trees)
@NO_DEADLINE
def test_spaces_round_trip_through_sorted_json(tree):
    space = Space.read(tree)

    again = Space.from_json(json.loads(json.dumps(space.to_json(), sort_keys=True)))

    assert again == space
    assert list(again.leaves) == list(space.leaves)
    assert again.to_json() == space.to_json()


@given(trees, st.integers(0, 2**63 - 1), st.integers(0, 2**40))
@NO_DEADLINE
def test_proposed_params_are_accepted_as_enqueued_params(tree, seed, draw):
    space = Space.read(tree)

    point = RandomSearch().propose(space, seed=seed, draw=draw)
    stored = json.loads(json.dumps(point, sort_keys=True))

    assert space.check_params(point) == point
    assert space.misfit(stored) is None
    assert space.complete({}, stored) == point
    assert space.config(stored) == space.config(point)
    assert set(space.flatten(space.config(point))) == set(space.leaves)
    assert params_hash(stored) == params_hash(point)


@given(trees, st.integers(0, 2**63 - 1), st.integers(0, 2**40))
@NO_DEADLINE
def test_proposed_value_of_a_parameter_does_not_depend_on_other_parameters(tree, seed, draw):
    space = Space.read(tree)
    point = space.flatten(RandomSearch().propose(space, seed=seed, draw=draw))

    for path, domain in space.parameters.items():
        alone = Space({path: domain})
        drawn = alone.flatten(RandomSearch().propose(alone, seed=seed, draw=draw))
        assert drawn == {path: point[path]}


@given(st.lists(st.integers(1, 4), max_size=4))
@NO_DEADLINE
def test_a_grid_visits_every_combination_once(sizes):
    space = Space.read({f"p{n}": randint(0, size) for n, size in enumerate(sizes)})
    grid = GridSearch()

    walked = [grid.propose(space, seed=0, draw=draw) for draw in range(grid.size(space))]

    assert len({params_hash(point) for point in walked}) == math.prod(size + 1 for size in sizes)
    assert walked == sorted(walked, key=lambda point: list(point.values()))


@given(plain_values)
@NO_DEADLINE
def test_json_text_of_a_value_parses_as_the_value(value):
    assume(canonical_json(value) == canonical_json(json.loads(json.dumps(value))))

    assert parse_value(json.dumps(value)) == value
    assert parse_value(json.dumps(value, ensure_ascii=False)) == value


@given(domains)
@NO_DEADLINE
def test_text_of_any_distribution_parses_as_the_distribution(domain):
    assert parse_parameter(f"x={domain}") == ("x", domain)


@given(st.text(max_size=60) | st.text("abx01.-+eE()[]{},:='\"\\ \n/$", max_size=60))
@settings(NO_DEADLINE, max_examples=500)
def test_arbitrary_text_is_read_or_refused(text):
    for parse in (
        parse_value,
        parse_call,
        parse_parameter,
        lambda t: parse_parameters([t, t + "1"]),
    ):
        try:
            parse(text)
        except InvalidSpec as error:
            str(error).encode()


@given(
    st.sampled_from(["uniform", "randint", "choice", "quniform", "lograndint", "x"]), plain_values
)
@NO_DEADLINE
def test_arbitrary_arguments_are_read_or_refused(name, value):
    arguments = json.dumps(value)[1:-1] if isinstance(value, list) else json.dumps(value)
    try:
        path, domain = parse_parameter(f"x={name}({arguments})")
    except InvalidSpec:
        return

    assert Space.from_json(Space({path: domain}).to_json()).parameters == {path: domain}


@given(st.dictionaries(st.text(max_size=3) | st.integers(), plain_values, max_size=3))
@NO_DEADLINE
def test_arbitrary_dict_is_read_as_a_space_or_refused(mapping):
    try:
        space = Space.read(mapping)
    except InvalidSpec:
        return

    assert Space.from_json(space.to_json()) == space
