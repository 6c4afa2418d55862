"""The grammar of the command line and of space files: values, calls, parameters and errors."""

import json

import pytest
from harness.refusal import check_refused

from studydb.domain.errors import InvalidSpec
from studydb.domain.space.parameters import parse_parameter, parse_parameters
from studydb.domain.space.search_space import (
    Space,
    choice,
    constant,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.space.space_file import read_space_file
from studydb.domain.specs.building import build
from studydb.domain.specs.grammar import Call, parse_call, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("27", 27),
        ("-3", -3),
        ("+3", 3),
        ("1_000", 1000),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("2.", 2.0),
        ("1E3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("resnet-50", "resnet-50"),
        ("1.2.3", "1.2.3"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("'true'", "true"),
        ("''", ""),
        (r"'it\'s'", "it's"),
        (r'"a\tb\u00e9\x41\\"', "a\tbéA\\"),
        (r'"\ud83d\ude00"', "😀"),
        ("'a \"b\" c'", 'a "b" c'),
        ("[]", []),
        ("[1, two, [3,],]", [1, "two", [3]]),
        ("{a: 1, 'b c': [x:y], d: {e: null}}", {"a": 1, "b c": ["x:y"], "d": {"e": None}}),
        ("{}", {}),
        (" 5 ", 5),
        ("f()", Call("f")),
        ("f(1, x, k=[2], m = g(3))", Call("f", (1, "x"), {"k": [2], "m": Call("g", (3,))})),
    ],
)
def test_value_is_parsed_with_its_type(text, value):
    parsed = parse_value(text)

    assert parsed == value
    assert type(parsed) is type(value)


def test_json_is_parsed_as_a_value():
    value = {"a": [1, 2.5, -3e-7, None, True], "b": {"c/d": 'q"\\\n\u2028é'}, "": []}

    assert parse_value(json.dumps(value)) == value
    assert parse_value(json.dumps(value, ensure_ascii=False, indent=2)) == value


def test_call_is_parsed_with_or_without_parentheses():
    assert parse_call("ASHA(max_t=27, grace_period=1)") == Call(
        "ASHA", (), {"max_t": 27, "grace_period": 1}
    )
    assert parse_call("FIFO") == Call("FIFO")


@pytest.mark.parametrize(
    ("text", "path", "leaf"),
    [
        ("lr=loguniform(1e-4,1)", "lr", loguniform(1e-4, 1)),
        ("model/width=randint(1,4)", "model/width", randint(1, 4)),
        ("act=choice(relu,tanh)", "act", choice(["relu", "tanh"])),
        ("act=choice([relu,tanh])", "act", choice(["relu", "tanh"])),
        ("act=choice([[1,2]],[3])", "act", choice([[[1, 2]], [3]])),
        ("act=choice(values=[1,2])", "act", choice([1, 2])),
        ("q=quniform(0, 1, q=0.1)", "q", quniform(0, 1, 0.1)),
        ("n=lograndint(lower=1, upper=9)", "n", lograndint(1, 9)),
        ("n=randint(1, 1e3)", "n", randint(1, 1000)),
        ("epochs=27", "epochs", 27),
        ("name=resnet", "name", "resnet"),
        ("note='a=b, c'", "note", "a=b, c"),
        (" lr = 0.1 ", "lr", 0.1),
    ],
)
def test_parameter_is_parsed_as_its_path_and_its_distribution_or_constant(text, path, leaf):
    assert parse_parameter(text) == (path, leaf)


@pytest.mark.parametrize(
    "domain",
    [
        uniform(-1.5, 1e300),
        loguniform(5e-324, 1),
        quniform(-1, 1, 0.25),
        randint(-5, 5),
        lograndint(1, 9),
        choice([1, 2.5, None, True, 'it\'s "q"', {"a": ["\n\\"]}, [], "é\x7f\U0001f600"]),
    ],
)
def test_text_of_a_distribution_parses_to_an_equal_distribution(domain):
    assert parse_parameter(f"x={domain}") == ("x", domain)


def test_parameters_given_by_paths_make_a_nested_space():
    tree = parse_parameters(["m/w=randint(1,2)", "lr=0.1", "m/deep/x=1"])

    assert tree == {"m": {"w": randint(1, 2), "deep": {"x": 1}}, "lr": 0.1}
    assert list(Space.read(tree).leaves) == ["m/w", "m/deep/x", "lr"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a=1", "a=2"], ["'a'", "twice"]),
        (["a=1", "a/b=2"], ["'a/b'", "below 'a'"]),
        (["a/b=2", "a=1"], ["'a'", "twice"]),
        (["a={b: 1}", "a/c=1"], ["'a/c'", "below 'a'"]),
    ],
)
def test_paths_that_exclude_each_other_are_refused(texts, words):
    check_refused(words, parse_parameters, texts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", ["column 3", "'='"]),
        ("lr=", ["column 4", "the end", "a value"]),
        ("=1", ["is empty"]),
        ("a//b=1", ["is empty"]),
        ("$a=1", ["'$a'", "reserved"]),
        ("lr=loguniform(1e-4,", ["column 20", "the end"]),
        ("lr=loguniform(1e-4;1,1)", ["'lr'", "lower", "'1e-4;1'"]),
        ("lr=loguniform(1e-4 1)", ["column 20", "'1'", "','"]),
        ("lr=loguniform(1e-4,1))", ["column 22", "')'", "the end"]),
        ("lr=logunifrom(1e-4,1)", ["'lr'", "'logunifrom'", "Did you mean 'loguniform'"]),
        ("lr=uniform(0)", ["'lr'", "'upper'"]),
        ("lr=uniform(0,1,2)", ["'lr'", "too many", "lower, upper"]),
        ("lr=uniform(0,uper=1)", ["'lr'", "'uper'", "Did you mean 'upper'"]),
        ("lr=uniform(0,lower=1)", ["'lr'", "multiple values"]),
        ("lr=uniform(lower=0,1)", ["column 20", "NAME=value"]),
        (
            "lr=uniform(lower=0,lower=1)",
            ["column 20", "another name, because 'lower' is given already"],
        ),
        ("lr=uniform(1,0)", ["'lr'", "uniform(1.0, 0.0)", "not below"]),
        ("lr=uniform(a,b)", ["'lr'", "lower", "'a'"]),
        ("lr=uniform(randint(1,2),3)", ["'lr'", "itself a call"]),
        ("a=choice(randint(1,2),3)", ["'a'", "itself a call"]),
        ("a=choice([randint(1,2)])", ["column 11", "plain value"]),
        ("a=choice()", ["'a'", "empty"]),
        ("a=resnet 50", ["column 10", "quote"]),
        ("a=b=c", ["column 4", "'='"]),
        ("a='b", ["column 5", "closing '"]),
        (r"a='\q'", ["column 4", "an escape"]),
        (r"a='\ud800'", ["column 3", "surrogate"]),
        (r"a='\U00110000'", ["column 4", "an escape"]),
        (r"a='\0'", ["an escape"]),
        ("a='\0'", ["'a'", "NUL"]),
        ("a=nan", ["column 3", "finite"]),
        ("a=-Infinity", ["column 3", "finite"]),
        ("a=1e999", ["column 3", "double"]),
        (f"a={'9' * 400}", ["column 3", "308 digits"]),
        ("a={b 1}", ["column 6", "':'"]),
        ("a={b: 1, b: 2}", ["column 10", "'b' is already given"]),
        ("a=[1 2]", ["column 6", "']'"]),
        ("a=" + "[" * 5000, ["32 levels"]),
        ("a=" + "f(" * 5000, ["32 levels"]),
        ("a=" + "{a:" * 5000, ["32 levels"]),
    ],
)
def test_error_in_a_typed_parameter_names_the_place_and_the_cause(text, words):
    assert len(check_refused(words, parse_parameter, text)) < 400


@pytest.mark.parametrize("text", ["27", "'two words'"])
def test_value_that_is_not_a_call_is_refused(text):
    check_refused(["a call such as"], parse_call, text)


def test_build_refuses_wrong_arguments_before_it_calls_the_class():
    called = []

    def scheduler(*, max_t):
        called.append(max_t)

    with pytest.raises(InvalidSpec, match="it takes max_t"):
        build(Call("S", (1,)), {"S": scheduler}, noun="scheduler")
    with pytest.raises(InvalidSpec, match="no scheduler 'T'"):
        build(Call("T"), {"S": scheduler}, noun="scheduler")
    assert called == []


def test_space_file_may_have_distributions_as_json_or_as_calls(tmp_path):
    file = tmp_path / "space.json"
    file.write_text(
        '{"lr": {"$": "loguniform(1e-4, 1)"}, "m": {"w": {"$": "randint", "lower": 1, "upper": 4}},'
        ' "name": {"$": "constant(\'uniform(0, 1)\')"}, "n": 3, "betas": {"$": "constant([1, 2])"},'
        ' "a": {"$": "choice", "values": [{"$": "x"}]}}'
    )

    space = read_space_file(file)

    assert space == Space.read(
        {
            "lr": loguniform(1e-4, 1),
            "m": {"w": randint(1, 4)},
            "name": constant("uniform(0, 1)"),
            "n": 3,
            "betas": constant([1, 2]),
            "a": choice([{"$": "x"}]),
        }
    )


def test_space_file_made_by_to_json_keeps_the_order_of_parameters(tmp_path):
    space = Space.read({"b": uniform(0, 1), "a": {"c": choice([1]), "d": None}})
    file = tmp_path / "space.json"
    file.write_text(json.dumps(space.to_json(), sort_keys=True))

    assert list(read_space_file(file).leaves) == ["b", "a/c", "a/d"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not JSON"]),
        ("[1]", ["not a dict"]),
        ('{"a": 1, "a": 2}', ["'a'", "twice"]),
        ('{"m": {"lr": {"$": "unifrom(0, 1)"}}}', ["'m/lr'", "'uniform'"]),
        (
            '{"lr": {"$": "uniform(0, 1)", "lower": 0}}',
            ["'lr'", "other keys beside '$': 'lower'. Remove these"],
        ),
        ('{"lr": NaN}', ["'lr'", "nan"]),
        ("[" * 100_000, ["nested"]),
        ('{"a":' * 500 + "1" + "}" * 500, ["nested"]),
        (f'{{"a": {"9" * 5000}}}', ["not JSON"]),
    ],
)
def test_error_names_the_bad_space_file(tmp_path, text, words):
    file = tmp_path / "space.json"
    file.write_text(text)

    check_refused(["space.json", *words], read_space_file, file)


def test_error_names_the_missing_space_file(tmp_path):
    check_refused(["none.json"], read_space_file, tmp_path / "none.json")
    check_refused(["directory"], read_space_file, tmp_path)
