"""Search spaces: reading, storing, configs, checks of params, hashes and random values."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from harness.refusal import check_refused

from studydb.domain.canonical import canonical_json, params_hash
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.search_space import (
    MAX_CONFIG_BYTES,
    Space,
    choice,
    constant,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.text.suggestions import did_you_mean

LARGEST_RANDOM = 1 - 2**-53
"""The largest number that `unit_draw` can return; `from_unit` maps such numbers to values."""


SPACE = Space.read(
    {
        "lr": loguniform(1e-4, 1.0),
        "model": {"width": randint(1, 4), "act": choice(["relu", None, {"leaky": 0.1}])},
        "epochs": 27,
        "z": {"deep": {"tags": constant(["a", 1])}},
        "empty": {},
    }
)


def test_parameters_are_paths_in_the_order_in_which_they_were_given():
    assert list(SPACE.parameters) == ["lr", "model/width", "model/act"]
    assert list(SPACE.constants) == ["epochs", "z/deep/tags", "empty"]


def test_json_form_of_a_space_is_nested():
    space = Space.read({"lr": loguniform(1e-4, 1), "model": {"width": randint(1, 4)}, "n": 3})

    assert space.to_json() == {
        "lr": {"$": "loguniform", "lower": 1e-4, "upper": 1.0},
        "model": {"width": {"$": "randint", "lower": 1, "upper": 4}},
        "n": 3,
        "$order": ["lr", "model/width", "n"],
    }


def test_space_round_trips_as_json_in_order():
    again = Space.from_json(json.loads(json.dumps(SPACE.to_json())))

    assert again == SPACE
    assert list(again.leaves) == list(SPACE.leaves)


def test_order_of_parameters_survives_json_with_sorted_keys():
    space = Space.read({"z": randint(1, 2), "m": {"y": randint(1, 2), "b": 1}, "a": randint(1, 2)})

    again = Space.from_json(json.loads(json.dumps(space.to_json(), sort_keys=True)))

    assert list(again.parameters) == ["z", "m/y", "a"]


def test_read_returns_a_space_unchanged_and_an_empty_space_for_none():
    assert Space.read(SPACE) is SPACE
    assert Space.read(None) == Space.read({})
    assert Space.read(None).to_json() == {}
    assert Space.from_json({}).config({}) == {}


def test_config_has_params_and_constants_in_the_order_of_the_space():
    config = SPACE.config({"model": {"act": {"leaky": 0.1}, "width": 2}, "lr": 0.1})

    assert config == {
        "lr": 0.1,
        "model": {"width": 2, "act": {"leaky": 0.1}},
        "epochs": 27,
        "z": {"deep": {"tags": ["a", 1]}},
        "empty": {},
    }
    assert list(config) == ["lr", "model", "epochs", "z", "empty"]


def test_config_gives_numbers_the_type_of_their_distribution():
    space = Space.read({"big": uniform(0, 1e17), "act": choice([1e16, "x"])})

    config = space.config({"big": 10**16, "act": 10**16})

    assert type(config["big"]) is float
    assert type(config["act"]) is float


def test_integers_of_stored_params_become_floats_where_the_domain_has_floats():
    space = Space.read({"net": {"x": uniform(0, 1e23), "k": randint(1, 9)}, "q": quniform(0, 4, 1)})

    restored = space.restore_floats({"net": {"x": 10**23, "k": 3}, "q": 2, "other": 10**16})

    assert repr(restored) == "{'net': {'x': 1e+23, 'k': 3}, 'q': 2.0, 'other': 10000000000000000}"
    assert repr(space.restore_floats_by_path({"net/x": 10**23})) == "{'net/x': 1e+23}"


@pytest.mark.parametrize(
    "params",
    [{"x": 0.5, "k": 3}, {"x": True}, {"x": 2 * 10**16}, {"x": 10**400}, {}, [10**16], None],
)
def test_params_without_integers_to_restore_are_returned_as_they_are(params):
    space = Space.read({"x": uniform(0, 1e16), "k": randint(1, 9)})

    assert space.restore_floats(params) is params
    assert space.restore_floats_by_path(params) is params


@pytest.mark.parametrize(
    "params", [{"command": "rm"}, {"a": {"x": 2, "path": "/"}}, {"a/path": "/"}, {"a": {"x": 2}}]
)
def test_params_do_not_override_constants(params):
    space = Space.read({"command": "ls", "a": {"x": randint(1, 2), "path": "here"}})

    config = space.config(params)

    assert (config["command"], config["a"]["path"]) == ("ls", "here")


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


MISFITS = [
    ({"lr": 2.0, "act": "a"}, "'lr' is 2.0, which is not in"),
    ({"lr": "0.5", "act": "a"}, "'lr' is '0.5', which is not in"),
    ({"lr": math.nan, "act": "a"}, "nan"),
    ({"lr": 0.5}, "lack 'act'"),
    ({}, "lack 'act', lack 'lr'"),
    ({"lr": 0.5, "act": "a", "command": "rm"}, "'command' is the constant 'ls'"),
    ({"lr": 0.5, "act": "a", "command": "ls"}, "have 'command'"),
    ({"lr": 0.5, "act": "a", "x": 1}, "no parameter 'x'"),
    ({"lr": 0.5, "act": deep(5000)}, ""),
    ({"lr": 0.5, "act": {"$": "choice"}}, "'act' is"),
    ([], "not a dict"),
    (None, "not a dict"),
    ("x" * 10**6, "not a dict"),
]


@pytest.mark.parametrize(("params", "why"), MISFITS, ids=map(str, range(len(MISFITS))))
def test_params_that_do_not_fit_the_space_are_a_misfit(params, why):
    space = Space.read({"lr": loguniform(0.1, 1.0), "act": choice(["a", "b"]), "command": "ls"})

    misfit = space.misfit(params)

    assert misfit is not None
    assert why in misfit
    assert len(misfit) < 1000
    assert space.misfit({"lr": 0.5, "act": "b"}) is None


def test_change_of_a_config_does_not_change_the_space():
    space = Space.read({"layers": constant([1, 2]), "act": choice([{"k": [1]}])})

    config = space.config({"act": {"k": [1]}})
    config["layers"].append(3)
    config["act"]["k"].append(3)

    assert space.config({"act": {"k": [1]}}) == {"layers": [1, 2], "act": {"k": [1]}}


def test_check_params_accepts_nested_names_and_paths_and_converts_values():
    checked = SPACE.check_params({"lr": 1, "model/width": np.int64(3), "model": {"act": None}})

    assert checked == {"lr": 1.0, "model": {"width": 3, "act": None}}
    assert type(checked["lr"]) is float
    assert type(checked["model"]["width"]) is int


def test_check_params_drops_params_that_equal_constants_of_the_space():
    assert SPACE.check_params({"epochs": 27, "z": {"deep": {"tags": ["a", 1]}}, "lr": 0.5}) == {
        "lr": 0.5
    }


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"lR": 0.1}, ["'lR'", "Did you mean 'lr'"]),
        ({"model": {"widht": 1}}, ["'model/widht'", "Did you mean 'model/width'"]),
        ({"model": {"width": 5}}, ["'model/width'", "5", "randint(1, 4)"]),
        ({"model": {"width": True}}, ["'model/width'", "True"]),
        ({"model": {"width": 1.5}}, ["'model/width'", "1.5"]),
        ({"model": 3}, ["'model'"]),
        ({"lr": math.nan}, ["'lr'", "nan"]),
        ({"lr": "0.1"}, ["'lr'", "'0.1'", "loguniform(0.0001, 1.0)"]),
        ({"lr": {0.1}}, ["'lr'", "a set"]),
        ({"model/act": "tanh"}, ["'model/act'", "choice("]),
        ({"epochs": 28}, ["'epochs'", "27", "28"]),
        ([], ["list"]),
    ],
)
def test_error_of_check_params_names_the_wrong_parameter(params, words):
    check_refused(words, SPACE.check_params, params)


def test_complete_adds_missing_parameters_from_a_proposal():
    drawn = {"lr": 0.2, "model": {"width": 1, "act": {"leaky": 0.1}}}

    assert SPACE.complete({"model": {"width": 4}}, drawn) == {
        "lr": 0.2,
        "model": {"width": 4, "act": {"leaky": 0.1}},
    }


def test_flatten_does_not_split_a_value_of_choice_that_is_a_dict():
    params = {"lr": 0.2, "model": {"width": 1, "act": {"leaky": 0.1}}}

    flat = SPACE.flatten(params)

    assert flat == {"lr": 0.2, "model/width": 1, "model/act": {"leaky": 0.1}}
    assert SPACE.nest(flat) == params


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({1: 2}, ["1", "text"]),
        ({"": 2}, ["empty"]),
        ({"a/b": 2}, ["'a/b'", "'/'"]),
        ({"m": {"a/b": 2}}, ["'a/b'", "under 'm'"]),
        ({"$": 2}, ["'$'", "reserved"]),
        ({"m": {"$": "uniform", "lower": 0, "upper": 1}}, ["'$'", "under 'm'"]),
        ({"m": {"x": math.inf}}, ["'m/x'", "inf"]),
        ({"m": {"x": [1, {"y": math.nan}]}}, ["'m/x'", "nan"]),
        ({"x": {1, 2}}, ["'x'", "a set"]),
        ({"x": object()}, ["'x'", "an object"]),
        ({"x": [{1: 2}]}, ["'x'", "key 1"]),
        ({"x": "a\0b"}, ["'x'", "NUL"]),
        ({"x\0": 1}, ["NUL"]),
        ({"x": "\ud800"}, ["'x'", "Unicode"]),
        ({"x": 2 * 10**308}, ["'x'", "308"]),
        ({"x": uniform}, ["'x'", "not called"]),
        ({"x": [randint(1, 2), 3]}, ["'x'", "list"]),
        ({"x": np.array([1, 2])}, ["'x'", "ndarray"]),
        ("lr", ["'lr'", "not a dict"]),
    ],
)
def test_error_of_space_read_names_the_invalid_parameter(mapping, words):
    check_refused(words, Space.read, mapping)


@pytest.mark.parametrize(
    ("value", "cure"),
    [
        ((0, 1), "uniform(0, 1) for a range, or choice([0, 1]) for one of them, or constant("),
        ([1, 0], "Write choice([1, 0]) for one of them, or constant([1, 0]) to give it to"),
        (["a", "b"], "Write choice(['a', 'b']) for one of them, or constant("),
        ([], "Write constant([]) to give it to every trial as it is."),
        (list(range(99)), "tuple […], which does not say how to sample. Write choice([…])"),
    ],
    ids=str,
)
def test_bare_list_is_refused_with_the_cure(value, cure):
    check_refused(
        ["Parameter 'opt/betas' is the bare list or tuple ", cure],
        Space.read,
        {"opt": {"betas": value}},
    )


def test_constant_list_is_given_to_every_trial_unchanged():
    space = Space.read({"lr": uniform(0, 1), "betas": constant((0.9, 0.999))})

    assert space.constants == {"betas": [0.9, 0.999]}
    assert Space.from_json(space.to_json()) == space
    assert space.config({"lr": 0.5})["betas"] == [0.9, 0.999]


def test_dict_or_list_that_contains_itself_is_refused():
    loop = {}
    loop["again"] = loop
    ring = []
    ring.append(ring)

    for call, value in [
        (Space.read, loop),
        (Space.read, {"ring": ring}),
        (SPACE.check_params, loop),
    ]:
        check_refused(["32 levels"], call, value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"m": {"lr": {"$": "logunifrom", "lower": 1, "upper": 2}}}, ["'m/lr'", "'loguniform'"]),
        ({"m": {"lr": {"$": ["uniform"]}}}, ["'m/lr'", "no distribution"]),
        ({"lr": {"$": "uniform", "lower": 1}}, ["'lr'", "lower, upper"]),
        ({"lr": {"$": "uniform", "lower": 1, "upper": 2, "q": 1}}, ["'lr'", "q"]),
        ({"lr": {"$": "uniform", "lower": 2, "upper": 1}}, ["'lr'", "not below"]),
        ({"lr": {"$": "uniform", "lower": "0", "upper": 1}}, ["'lr'", "lower", "'0'"]),
        ({"$order": "lr", "lr": 1}, ["$order"]),
        ([1], ["[1]"]),
    ],
)
def test_error_of_space_from_json_names_the_invalid_parameter(spec, words):
    check_refused(words, Space.from_json, spec)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: uniform(1, 1), "not below"),
        (lambda: uniform(2, 1), "not below"),
        (lambda: uniform(math.nan, 1), "is nan; it must be a finite number"),
        (lambda: uniform(0, math.inf), "is inf; it must be a finite number"),
        (lambda: quniform(0, 1, math.inf), "quniform.q is inf; it must be a finite number"),
        (lambda: uniform("0", 1), "lower"),
        (lambda: uniform(False, 1), "False"),
        (lambda: uniform(-1.7e308, 1.7e308), "wider"),
        (lambda: uniform(0, 10**307 * 99), "too large|308"),
        (lambda: loguniform(0, 1), "above 0"),
        (lambda: loguniform(-1, 1), "above 0"),
        (lambda: lograndint(0, 5), "above 0"),
        (lambda: randint(0.5, 2), "integer"),
        (lambda: randint(3, 2), "not below"),
        (lambda: randint(0, 2**60), r"2\*\*53"),
        (lambda: randint(2**63, 2**63 + 9), "64 bits"),
        (lambda: quniform(0, 1, 0), "step"),
        (lambda: quniform(0, 1, -0.1), "step"),
        (lambda: quniform(0.11, 0.19, 0.1), "no multiple"),
        (lambda: quniform(0, 1, 1e-300), r"2\*\*53"),
        (lambda: choice([]), "empty"),
        (lambda: choice("abc"), "not a list"),
        (lambda: choice({"a": 1}), "not a list"),
        (lambda: choice([math.nan]), "nan"),
        (lambda: choice([print]), "JSON"),
        (lambda: choice("a", 2), r"got 2 arguments; write choice\(\['a', 2\]\)"),
    ],
)
def test_distribution_with_wrong_arguments_is_refused(make, word):
    with pytest.raises(InvalidSpec, match=word):
        make()


def test_numpy_values_in_a_space_become_plain_values_of_python():
    space = Space.read(
        {
            "a": uniform(np.float32(0), np.int8(2)),
            "b": choice(np.array([1, 2])),
            "c": np.float64(0.5),
            "d": np.bool_(True),
            "e": choice([np.str_("x"), (1, 2)]),
        }
    )

    assert json.loads(json.dumps(space.to_json())) == space.to_json()
    assert type(space.constants["c"]) is float
    assert space.constants["d"] is True


@pytest.mark.parametrize("domain", [randint(1, 1000), lograndint(1, 1000)], ids=str)
def test_values_of_an_integer_distribution_reach_both_bounds(domain):
    assert (domain.from_unit(0.0), domain.from_unit(LARGEST_RANDOM)) == (1, 1000)


def test_lograndint_gives_the_exact_powers_of_its_bounds():
    assert [lograndint(1, 255).from_unit(u) for u in (0.25, 0.375, 0.5)] == [4, 8, 16]


def test_lograndint_gives_integers_that_no_double_can_hold():
    first = 2**60
    domain = lograndint(first, first + 100)

    drawn = {domain.from_unit(k / 1024) - first for k in range(1024)}

    assert drawn == set(range(101))


@pytest.mark.parametrize("domain", [uniform(1e22, 1e23), loguniform(1e22, 1e23)], ids=str)
def test_integer_that_jsonb_returns_for_a_large_float_is_in_the_domain(domain):
    stored = 10**23  # Python says that 1e23 < 10**23

    assert domain.contains(1e23)
    assert domain.contains(stored)
    assert domain.cast(stored) == 1e23
    assert not domain.contains(10**400)
    assert not domain.contains(-(10**400))


def test_quniform_values_have_short_decimals():
    domain = quniform(0.1, 0.95, 0.1)

    assert [domain.at(index) for index in range(domain.size)] == [
        0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
    ]  # fmt: skip
    assert domain.contains(0.1 * 3)
    assert domain.cast(0.1 * 3) == 0.3
    assert not domain.contains(0.35)
    assert not domain.contains(1.0)


def test_quniform_values_are_multiples_of_q_and_do_not_start_at_lower():
    domain = quniform(-0.5, 1, 0.4)

    assert [domain.at(index) for index in range(domain.size)] == [-0.4, 0.0, 0.4, 0.8]


def test_loguniform_is_uniform_on_a_logarithmic_scale():
    domain = loguniform(1e-4, 1.0)

    assert domain.from_unit(0.0) == 1e-4
    assert domain.from_unit(0.5) == pytest.approx(1e-2, rel=1e-12)
    assert domain.from_unit(LARGEST_RANDOM) <= 1.0


def test_values_and_hashes_never_change_between_versions():
    assert params_hash({"lr": 0.1}) == "9c9ba942d8bb6213cd855c3e8ddfeb66"
    assert uniform(-1, 3).from_unit(0.3) == 0.19999999999999996
    assert loguniform(1e-5, 10).from_unit(0.3) == 0.0006309573444801932
    assert randint(1, 10).from_unit(0.3) == 3
    assert lograndint(1, 1000).from_unit(0.3) == 7
    assert quniform(0, 1, 0.05).from_unit(0.3) == 0.3
    assert choice(["a", "b", "c"]).from_unit(0.3) == "a"


def test_choice_of_1_contains_1_point_0_but_not_true():
    domain = choice([1, "x"])

    assert domain.contains(1.0)
    assert domain.cast(1.0) == 1
    assert not domain.contains(True)
    assert domain != choice([True, "x"])


def test_distributions_are_frozen_and_equal_if_their_options_are_equal():
    assert (
        len({uniform(0, 1), uniform(0.0, 1.0), loguniform(1, 2), choice([{}]), choice([{}])}) == 3
    )
    with pytest.raises(AttributeError):
        uniform(0, 1).lower = 5


def test_canonical_json_sorts_keys_and_writes_whole_floats_as_integers():
    assert canonical_json({"b": 1.0, "a": [True, None, -0.0, 1e16]}) == (
        '{"a":[true,null,0,10000000000000000],"b":1}'
    )


@pytest.mark.parametrize("value", [1e16, 2.0**70, 1e30, -1e23, 1.7e308])
def test_canonical_json_is_the_same_for_a_large_float_and_the_integer_that_jsonb_returns(value):
    as_jsonb_returns_it = int(Decimal(json.dumps(value)))

    assert canonical_json([value]) == canonical_json([as_jsonb_returns_it])
    assert float(canonical_json(value)) == value


def test_params_hash_ignores_key_order_and_the_type_of_whole_numbers():
    first = params_hash({"a": 1, "b": {"c": 0.5, "d": "x"}})

    assert first == params_hash({"b": {"d": "x", "c": 0.5}, "a": 1.0})
    assert first != params_hash({"a": 1, "b": {"c": 0.5, "d": "y"}})
    assert len(first) == 32


def test_suggestions_ignore_case_and_are_empty_without_a_similar_name():
    assert did_you_mean("asha", ["ASHA", "FIFO"]) == " Did you mean 'ASHA'?"
    assert did_you_mean("qwertz", ["ASHA", "FIFO"]) == ""


def test_names_that_begin_with_the_wrong_name_are_suggested_instead_of_similar_names():
    assert did_you_mean("Grace", ["brackets", "grace_period"]) == " Did you mean 'grace_period'?"


def test_wrong_name_of_two_characters_is_not_taken_for_the_beginning_of_a_name():
    assert did_you_mean("lr", ["lr_decay_of_the_model", "l_r"]) == " Did you mean 'l_r'?"


TOO_LARGE = "x" * (MAX_CONFIG_BYTES + 1)


@pytest.mark.parametrize(
    "mapping",
    [
        {"data": TOO_LARGE},
        {"model": {"data": TOO_LARGE}},
        {"data": choice(["small", TOO_LARGE])},
        {f"part{number}": TOO_LARGE[: len(TOO_LARGE) // 4 + 1] for number in range(4)},
    ],
    ids=["constant", "nested", "choice", "sum"],
)
def test_space_that_is_too_large_is_refused_with_the_limit(mapping):
    with pytest.raises(InvalidSpec, match="bytes as JSON; the limit is 16,777,216 bytes"):
        Space.read(mapping)


def test_params_that_are_too_large_are_refused_with_the_limit():
    space = Space.read({"data": choice(["small", "large"]), "x": uniform(0, 1)})

    with pytest.raises(InvalidSpec, match="The largest value is 'data' with 16,777,"):
        space.check_params({"data": TOO_LARGE})


def test_space_as_large_as_the_limit_is_accepted():
    space = Space.read({"data": TOO_LARGE[:-3]})

    assert space.constants == {"data": TOO_LARGE[:-3]}
