"""The command line of a trial: its placeholders, and what is refused."""

import pytest

from studydb.domain.command_line import CommandLine, Paths, as_text
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.search_space import Space, choice, uniform

PATHS = Paths("/scratch/config.json", "/scratch/kept", {"HOME": "/users/me"})
VALUES = {"lr": 0.1, "model/width": 3, "on": True, "text": "it's $HOME {x}\n"}


def expanded(*items, values=VALUES):
    return CommandLine.read(items).expand(values, PATHS)


@pytest.mark.parametrize(
    ("item", "becomes"),
    [
        ("{lr}", ["0.1"]),
        ("--width={model.width}", ["--width=3"]),
        ("{on}", ["true"]),
        ("{text}", ["it's $HOME {x}\n"]),
        ("{{lr}}", ["{lr}"]),
        ("a{{{lr}}}b", ["a{0.1}b"]),
        ("--file={config}", ["--file=/scratch/config.json"]),
        ("{checkpoint_dir}", ["/scratch/kept"]),
        ("${args_json_file}", ["/scratch/config.json"]),
        ("${interpreter}", ["python"]),
        ("${envvar:HOME}/x", ["/users/me/x"]),
        ("${envvar:MISSING}", [""]),
    ],
)
def test_placeholder_is_replaced_within_its_item(item, becomes):
    assert expanded("./train", item) == ["./train", *becomes]


@pytest.mark.parametrize(
    ("item", "becomes"),
    [
        ("{args}", ["--lr", "0.1", "--model.width", "3", "--on", "true"]),
        ("{args_hydra}", ["lr=0.1", "model.width=3", "on=true"]),
        ("${args}", ["--lr=0.1", "--model.width=3", "--on=True"]),
        ("${args_no_equals}", ["--lr", "0.1", "--model.width", "3", "--on", "True"]),
        ("${args_no_hyphens}", ["lr=0.1", "model.width=3", "on=True"]),
        ("${args_no_boolean_flags}", ["--lr=0.1", "--model.width=3", "--on"]),
        ("${args_json}", ['{"lr": 0.1, "model.width": 3, "on": true}']),
        ("${args_append_hydra}", ["+lr=0.1", "+model.width=3", "+on=True"]),
        ("${args_override_hydra}", ["++lr=0.1", "++model.width=3", "++on=True"]),
    ],
)
def test_placeholder_of_all_parameters_becomes_items(item, becomes):
    values = {name: value for name, value in VALUES.items() if name != "text"}

    assert expanded("./train", item, values=values) == ["./train", *becomes]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", "'two words'"),
        ("it's", r"'it\'s'"),
        ("1e3", "'1e3'"),
        ("true", "'true'"),
        ("", "''"),
        ([1, "a b"], "[1,'a b']"),
        (None, "null"),
    ],
)
def test_value_is_quoted_for_hydra(value, text):
    assert expanded("./train", "{args_hydra}", values={"x": value})[1:] == [f"x={text}"]


def test_value_that_is_neither_a_number_nor_a_text_is_written_as_json():
    assert [as_text(value) for value in ([1, "é"], {"a": None}, None, False)] == [
        '[1, "é"]',
        '{"a": null}',
        "null",
        "false",
    ]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ("./train --lr 1", "give a list"),
        ([], "names no program"),
        ([""], "names no program"),
        (["./train", 3], "not a list of texts"),
        (["./train", "{"], "single brace"),
        (["./train", '{"a": 1}x}'], "single brace"),
        (["./train", "--all={args}"], "a separate item"),
        (["./train", "${arg}"], "Did you mean 'args'"),
        (["./train", "x${args}"], "holds more than"),
        (["./train", "a\0b"], "NUL"),
    ],
)
def test_malformed_command_is_refused(items, words):
    with pytest.raises(InvalidSpec, match=words):
        CommandLine.read(items)


@pytest.mark.parametrize(
    "items",
    [
        ["{tool}"],
        ["bin/{tool}"],
        ["{args}"],
        ["${envvar:TOOL}"],
        ["/usr/bin/env", "{tool}"],
        ["env", "A=1", "-u", "{tool}", "./train"],
        ["env", "-u", "HOME", "{tool}"],
        ["env", "-C", "/tmp", "{tool}"],
        ["env", "-u", "HOME", "LD_PRELOAD={lr}", "./train"],
        ["${env}", "${args_no_hyphens}", "./train"],
        ["${env}", "A={lr}", "./train"],
    ],
)
def test_program_cannot_be_chosen_by_a_placeholder(items):
    with pytest.raises(InvalidSpec, match="has a placeholder"):
        CommandLine.read(items)


@pytest.mark.parametrize(
    "items",
    [
        ["sh", "-c", "train {lr}"],
        ["/bin/bash", "-x", "-c", "train {lr}", "sh"],
        ["sh", "-ec", "train {lr}"],
        ["bash", "-o", "pipefail", "-c", "train {lr}"],
        ["nice", "sh", "-c", "train {lr}"],
        ["env", "A=1", "bash", "-c", "train {lr}"],
        ["sh", "{lr}", "-x"],
        ["sh", "-c", "${args_no_hyphens}"],
        ["bash", "-c", "${args_json}"],
        ["bash", "-lc", "${args}"],
        ["python", "-c", "train({lr})"],
        ["python3.11", "-Wignore", "-c", "${args_json}"],
        ["${env}", "${interpreter}", "-c", "${args_no_hyphens}"],
        ["${env}", "${interpreter}", "{script}"],
        ["perl", "-we", "train {lr}"],
        ["node", "--eval={lr}"],
        ["env", "sh", "{script}"],
        ["env", "-S", "sh -c", "{lr}"],
        ["env", "-u", "HOME", "-S", "sh -c", "{lr}"],
        ["env", "-iS", "sh -c", "{lr}"],
        ["env", "--split", "sh -c", "{lr}"],
        ["env", "-u", "HOME", "--chdir", "/tmp", "sh", "{script}"],
        ["nice", "tcsh", "-c", "{lr}"],
        ["bash-5.2", "wrapper.sh", "bash", "-c", "{lr}"],
        ["sh", "${args_no_equals}", "-c", "train"],
        ["bash", "-euo", "pipefail", "-c", "train {lr}"],
        ["/bin/ash", "-xc", "${args_no_hyphens}"],
        ["${env}", "bash", "-c", "${args_json}"],
    ],
)
def test_parameter_cannot_be_part_of_a_script(items):
    with pytest.raises(InvalidSpec, match=r"would be run as code|env -S"):
        CommandLine.read(items)


@pytest.mark.parametrize(
    "items",
    [
        ["sh", "-c", 'train "$1"', "sh"],
        ["bash", "train.sh", "-c"],
        ["sh", "-e", "train.sh"],
        ["bash", "-euo", "pipefail", "-c", 'train "$1"', "sh"],
        ["sh", "-c", '${interpreter} train.py "$@"', "sh"],
        ["./train", "--language", "sh"],
        ["python", "-O", "train.py"],
        ["python3.11", "-m", "train", "-c"],
        ["env", "LANG=C", "python", "-W", "ignore", "train.py"],
        ["./run", "--interpreter", "python", "--lr"],
        ["sh", "-c", 'train "$@"', "sh", "--lr"],
        ["perl", "-we", "print @ARGV"],
        ["${interpreter}", "${envvar:HOME}/train.py"],
    ],
)
def test_parameter_can_be_an_argument_of_a_script_or_program(items):
    assert expanded(*items, "{lr}")[-1] == "0.1"


SPACE = Space.read({"lr": uniform(0, 1), "model": {"width": choice([1, 2])}, "epochs": 3})


@pytest.mark.parametrize(
    "items",
    [
        ["./train"],
        ["./train", "{lr}", "{model.width}"],
        ["./train", "{lr}", "{args}"],
        ["./train", "{lr}", "{config}"],
        ["./train", "{lr}", "${args_json}"],
        ["./train", "{epochs}", "{lr}", "{model.width}"],
        ["./train", "{epochs}"],
    ],
)
def test_command_that_receives_every_parameter_or_names_none_is_accepted(items):
    CommandLine.read(items).check(SPACE)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["./train", "{lrr}"], "Did you mean 'lr'"),
        (["./train", "{lr}"], "but not model.width"),
        (["./train", "{model/width}"], "Did you mean 'model.width'"),
    ],
)
def test_command_with_an_unknown_name_or_only_some_parameters_is_refused(items, words):
    with pytest.raises(InvalidSpec, match=words):
        CommandLine.read(items).check(SPACE)


@pytest.mark.parametrize("name", ["args", "config", "args_hydra", "checkpoint_dir"])
def test_parameter_is_refused_if_the_command_has_a_placeholder_of_the_same_name(name):
    words = rf"{{{name}}} is a placeholder of studydb, but the study also has a parameter '{name}'"
    with pytest.raises(InvalidSpec, match=f"{words}.*another name, or pass all parameters"):
        CommandLine.read(["./train", f"{{{name}}}"]).check(Space.read({name: uniform(0, 1)}))


@pytest.mark.parametrize(
    ("item", "becomes"),
    [("${args}", ["--config=a.yaml", "--args=1"]), ("{args_hydra}", ["config=a.yaml", "args=1"])],
)
def test_placeholder_of_all_parameters_passes_a_parameter_with_the_name_of_a_placeholder(
    item, becomes
):
    line = CommandLine.read(["./train", item])
    values = {"config": "a.yaml", "args": 1}

    line.check(Space.read({"config": choice(["a.yaml"]), "args": uniform(0, 1)}))

    assert line.expand(values, PATHS) == ["./train", *becomes]


def test_command_cannot_be_expanded_for_a_trial_without_a_parameter_that_the_command_names():
    with pytest.raises(InvalidSpec, match="this trial's config lacks"):
        expanded("./train", "{lr}", values={})
