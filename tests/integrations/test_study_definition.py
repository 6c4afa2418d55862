"""
`show NAME` prints a study's definition, and `create` prints the study's space.

Three kinds of studies are refused: a study that would run one configuration without end, a study
that would pause trials but never resume one, and a study with a range that would be read as a
constant.
"""

import json
from pathlib import Path

import pytest

import studydb
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.search_space import Space, loguniform
from studydb.operations.create import load

CREATE = ("create", "digits", "--metric", "error", "--mode", "min")
TRAINABLE = ("--trainable", "studydb.examples.quadratic:train")


@pytest.mark.parametrize("space", [{}, {"lr": 0.1}, {"net": {"lr": 0.1}}], ids=str)
def test_study_without_a_parameter_to_search_needs_a_budget(storage_url, space):
    options = {"metric": "error", "mode": "min", "space": space, "storage": storage_url}
    train = "studydb.examples.quadratic:train"

    with pytest.raises(InvalidSpec, match="the same trial would be made again and again"):
        studydb.create_study("endless", train, **options)

    studydb.create_study("bounded", train, num_trials=3, **options).close()
    studydb.create_study("grid", train, searcher=studydb.GridSearch(), **options).close()


def test_own_loop_without_a_budget_needs_no_space_but_a_space_of_constants_alone_is_refused(
    storage_url,
):
    options = {"metric": "error", "mode": "min", "storage": storage_url}

    studydb.create_study("log", None, **options).close()

    with pytest.raises(InvalidSpec, match="only constants"):
        studydb.create_study("constants", None, space={"lr": 1}, **options)


def test_one_epoch_needs_num_trials_or_max_steps_or_a_grid(storage_url):
    options = {"metric": "error", "mode": "min", "storage": storage_url}
    options |= {"space": {"lr": studydb.choice([0.1, 0.2])}}
    options |= {"scheduler": studydb.OneEpoch(i=1, top_k=1, max_t=9)}

    with pytest.raises(InvalidSpec, match="OneEpoch lets no trial go on before num_trials"):
        studydb.create_study("endless", None, **options)

    for name, budget in {
        "trials": {"num_trials": 3},
        "limit": {"max_steps": 30},
        "grid": {"searcher": studydb.GridSearch()},
    }.items():
        studydb.create_study(name, None, **budget, **options).close()


def test_create_refuses_a_range_that_would_be_read_as_a_constant(console):
    refused = console(*CREATE, *TRAINABLE, "--param", "lr=1e-4..1", code=2)

    assert "lr=uniform(1e-4, 1) to sample from it" in refused.err
    console("status", "digits", code=1)


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (["true", "{lr}"], ""),  # `true` is on PATH, so workers look in no other directory
        (
            ["sh", "train.sh", "{lr}"],
            "; workers look for train.sh in their own directory, then in {here}",
        ),
    ],
)
def test_show_says_where_workers_look_for_the_files_of_a_command(console, here, command, where):
    (here / "train.sh").write_text("echo loss: 1\n")
    console(*CREATE, "--param", "lr=uniform(0, 1)", "--", *command)

    shown = " ".join(console("show", "digits").out.split())

    line = " ".join(command).replace("{lr}", "'{lr}'")
    assert f"trainable the command {line}{where.format(here=here)} scheduler" in shown


def test_create_prints_the_space_with_one_line_per_parameter(console):
    ran = console(
        *CREATE, *TRAINABLE, "--param", "net/lr=loguniform(1e-4, 1)", "--param", "epochs=27"
    )

    assert ran.lines[1:3] == ["  net/lr  loguniform(0.0001, 1.0)", "  epochs  27  (constant)"]


@pytest.mark.each_database
def test_show_prints_the_definition_of_a_study(console, database):
    console(
        *(*CREATE, *TRAINABLE, "--param", "lr=loguniform(1e-4, 1)", "--num-trials", "60"),
        *("--scheduler", "ASHA(max_t=27)", "--searcher", "RandomSearch(seed=5)"),
        *("--stop", "loss>=3", "--max-concurrent", "4", "--max-failures", "-1"),
    )
    study = load(database, "digits")

    page = {
        line.split()[0]: line.split(maxsplit=1)[1]
        for line in console("show", "digits").lines
        if len(line.split()) > 1
    }
    as_json = console("show", "digits", "--format", "json").json
    (as_csv,) = console("show", "digits", "--format", "csv").csv

    assert page["metric"] == "error (min)"
    assert page["scheduler"] == "ASHA(max_t=27, grace_period=1, reduction_factor=4)"
    assert page["searcher"] == "RandomSearch(seed=5)"
    assert (page["seed"], page["trials"], page["stop"]) == ("5", "60", "loss>=3")
    name, where = page["trainable"].split(", ", 1)
    assert name == "studydb.examples.quadratic:train"
    assert where == f"imported; workers look for it in their own directory, then in {Path.cwd()}"
    assert page["failures"] == "a trial survives any number"
    assert page["lr"] == "loguniform(0.0001, 1.0)"
    assert page["created"].endswith(f"by {study.created_by}")
    assert study.created_by.count("@") == 1
    assert page["checkpoints"] == as_json["checkpoints"]
    assert as_json["checkpoints"].startswith("inline:" if database.postgresql else "file:///")
    assert Space.from_json(as_json["space"]) == Space.read({"lr": loguniform(1e-4, 1)})
    assert as_json["max_concurrent"] == 4
    assert as_csv["num_trials"] == "60"
    assert json.loads(as_csv["scheduler"])["max_t"] == 27


def test_show_says_that_own_loops_run_the_trials_of_a_study_without_a_trainable(console):
    console("create", "mine", "--metric", "m", "--mode", "max", "--param", "x=uniform(0, 1)")

    shown = console("show", "mine")

    assert "none: the user's own program runs the trials, through study.ask()" in shown.out
    assert "studydb status mine" in shown.lines[-1]
