"""Lookalikes (constants that look like distributions) are refused unless given to `constant`."""

import json

import pytest
from harness.refusal import check_refused

from studydb.domain.space.parameters import parse_parameters
from studydb.domain.space.search_space import Space, choice, constant, loguniform, uniform
from studydb.domain.space.space_file import read_space_file

TEXTS = [
    ("loguniform(1e-4,1)", "lr=loguniform(1e-4,1)"),
    ("studydb.uniform(0, 1)", "lr=uniform(0, 1)"),
    (" tune.choice([1, 2]) ", "lr=choice([1, 2])"),
    ("tune.grid_search([1, 2])", "choice([…]) with searcher=GridSearch()"),
    ("suggest_float('lr', 0, 1)", "uniform(low, high)"),
    ("LogUniform(1e-4, 1)", "lr=loguniform(1e-4, 1)"),
    ("1e-4..1", "lr=uniform(1e-4, 1)"),
    ("-1 ... 1", "lr=uniform(-1, 1)"),
    ("0.1 to 0.5", "lr=uniform(0.1, 0.5)"),
    ("[0, 1]", "lr=uniform(0, 1)"),
    ("(1e-4, 1)", "lr=uniform(1e-4, 1)"),
]
DICTS = [
    ({"type": "loguniform", "lower": 1e-4, "upper": 1}, "lr=loguniform(0.0001, 1)"),
    ({"_type": "choice", "_value": 3}, "lr=choice(…)"),
    ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1}, "lr=loguniform(low, high)"),
    ({"name": "FloatDistribution", "low": 0, "high": 1}, "uniform(low, high)"),
    ({"min": 0, "max": 1}, "lr=uniform(0, 1)"),
    ({"low": 1e-4, "high": 1, "log": True}, "lr=loguniform(0.0001, 1)"),
]
DIGITS = "1" * 100_000
OTHER_TEXTS = [
    *("adam", "resnet(50)", "f(x)", "1.0", "2024-01-01", "a..b", "../data", "10:30", "a to b"),
    *("uniform", "choice", "x1..x2", "[a, b]", ""),
]


@pytest.mark.parametrize(("value", "cure"), [*TEXTS, *DICTS], ids=str)
def test_constant_that_looks_like_a_distribution_is_refused_with_the_cure(value, cure):
    words = ["Parameter 'net/lr'", cure, f"lr=constant({value!r})"]
    check_refused(words, Space.read, {"net": {"lr": value}})


@pytest.mark.parametrize("value", [value for value, _ in [*TEXTS, *DICTS]], ids=str)
def test_lookalike_given_to_constant_is_kept_and_round_trips_as_json(value):
    space = Space.read({"net": {"lr": constant(value)}, "x": uniform(0, 1)})

    assert list(space.parameters) == ["x"]
    assert space.config({"x": 0.5})["net"] == {"lr": value}
    assert Space.from_json(space.to_json()) == space


@pytest.mark.parametrize("value", OTHER_TEXTS)
def test_text_that_is_no_lookalike_is_a_constant(value):
    assert Space.read({"x": value}).constants == {"x": value}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [DIGITS, f"[{DIGITS}", "1" + " " * len(DIGITS)], ids=len)
def test_text_of_100_000_characters_is_found_to_be_a_constant_within_a_minute(value):
    assert Space.read({"x": value}).constants == {"x": value}


def test_nested_dict_with_names_such_as_type_and_min_is_no_lookalike():
    space = Space.read({"init": {"type": "normal", "std": uniform(0, 1)}, "clip": {"min": 0}})

    assert list(space.leaves) == ["init/type", "init/std", "clip/min"]


def test_distribution_in_a_constant_is_refused():
    given = {"$": "uniform", "lower": 0, "upper": 1}
    check_refused(["'x/a' is a Uniform"], Space.read, {"x": constant({"a": uniform(0, 1)})})
    check_refused(["begins with '$'"], Space.read, {"x": constant({"a": given})})


def test_lookalike_on_the_command_line_is_refused():
    for typed in ("lr=1e-4..1", "lr='loguniform(1e-4,1)'", 'lr="[0, 1]"'):
        check_refused(["would not be sampled"], Space.read, parse_parameters([typed]))

    kept = Space.read(parse_parameters(["lr=constant('1e-4..1')", "x=uniform(0, 1)"]))
    assert kept.constants == {"lr": "1e-4..1"}


@pytest.mark.parametrize(
    ("written", "cure"),
    [
        ("loguniform(1e-4, 1)", '{"$": "loguniform(1e-4, 1)"} to sample'),
        ({"type": "uniform", "min": 0, "max": 1}, '{"$": "uniform(0, 1)"} to sample'),
        ([16, 32], '{"$": "uniform(16, 32)"} for a range, or {"$": "choice([16, 32])"} for one'),
        ([], 'Write {"$": "constant([])"} to give it'),
    ],
    ids=str,
)
def test_lookalike_in_a_file_is_refused_with_the_cure_for_files(tmp_path, written, cure):
    file = tmp_path / "space.json"
    file.write_text(json.dumps({"net": {"lr": written}}))

    check_refused(["space.json", "'net/lr'", cure], read_space_file, file)


def test_space_file_may_have_the_form_that_errors_suggest_or_the_stored_form(tmp_path):
    file = tmp_path / "space.json"
    file.write_text('{"a": {"$": "choice([16, 32])"}, "b": {"$": "constant([16, 32])"}}')
    read = read_space_file(file)

    file.write_text(json.dumps(read.to_json()))

    assert read == Space.read({"a": choice([16, 32]), "b": constant([16, 32])})
    assert read_space_file(file) == read


def test_list_that_holds_a_distribution_is_refused():
    check_refused(["holds a distribution"], Space.read, {"x": [loguniform(1e-4, 1)]})
