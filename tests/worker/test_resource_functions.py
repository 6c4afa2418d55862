"""A function of the config says what a trial needs; if the function fails, no trial fails."""

import dataclasses
import sys

import pytest
from fleet.workers import TRAINABLES, eventually
from msgspec import structs

import studydb
from studydb.db.schema import trial
from studydb.domain.errors import TrainableError, Untrusted
from studydb.domain.life.states import Status
from studydb.settings import load_keyring
from studydb.worker.rule_code import trusted_code

SIZES = (4, 3, 2, 1)
"""
The creation of a study calls the study's resource function with a config that is sampled by seed 0.
With the sizes in this order, this config has the size 1, for which `wrong` gives a valid answer.
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Put the folder of the trainables, which has the resource functions, on sys.path."""
    monkeypatch.syspath_prepend(str(TRAINABLES))
    yield
    sys.modules.pop("requesting", None)


def create(stage, function="licences", **options):
    space = {"size": studydb.choice(list(SIZES)), "how": "raises", **options.pop("space", {})}
    options = {"num_trials": 12, "searcher": studydb.RandomSearch(seed=1)} | options
    return stage.create(
        "requesting:work", resources=f"requesting:{function}", space=space, **options
    )


def one_line(text):
    return " ".join(text.split())


def correct(stage):
    (stage.folder / "corrected").touch()
    stage.study.resume()


@pytest.mark.slow
@pytest.mark.row("B4")
def test_each_trial_asks_for_what_the_function_says_of_its_config(stage):
    create(stage)

    assert stage.run(slots=3, resource="licence=4") == 0

    rows = stage.rows(trial)
    assert {row.state for row in rows} == {"TERMINATED"}
    assert len({row.resource_class for row in rows}) > 1
    assert all(row.resource_class == f"licence={row.params['size']}" for row in rows)


@pytest.mark.nightly
def test_trials_that_fit_no_worker_wait_and_the_others_run(stage):
    """The small worker sets large trials aside; a larger worker runs them."""
    create(stage)
    small = stage.start(slots=2, resource="licence=2")
    eventually(lambda: {row.state for row in stage.rows(trial)} == {"TERMINATED", "PENDING"})

    assert stage.run(slots=2, resource="licence=4") == 0

    assert small.exit_code(30.0) == 0
    assert {row.state for row in stage.rows(trial)} == {"TERMINATED"}
    assert len(stage.rows(trial)) == 12
    assert max(row.losses + row.failures for row in stage.rows(trial)) == 0


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("less than nothing", "gives licence as -1; it must be a number from 0 to"),
        ("None", "it returned None; return amounts by name, such as {'gpus': 1}"),
        ("a word", "'much' is not NAME=AMOUNT"),
        ("dies", "its process exited with code 1"),
        ("exits", "it raised SystemExit: 3"),
        ("hangs", "it took more than 1 s"),
        ("one GPU and a half", "asks for 1.5 gpus; a trial gets whole GPUs"),
    ],
)
def test_function_without_a_valid_answer_pauses_the_study(sqlite_stage, how, says):
    study = create(sqlite_stage, "wrong", space={"how": how})
    worker = sqlite_stage.start(slots=2, resource="licence=4")

    eventually(lambda: study.status is Status.PAUSED)
    assert says in one_line(sqlite_stage.command("status", "staged"))
    correct(sqlite_stage)

    assert worker.exit_code(60.0) == 0
    assert {row.state for row in sqlite_stage.rows(trial)} == {"TERMINATED"}
    assert max(row.failures + row.losses for row in sqlite_stage.rows(trial)) == 0


@pytest.mark.slow
@pytest.mark.row("B4")
def test_worker_goes_on_after_the_resource_function_is_corrected(stage):
    study = create(stage, "wrong")
    worker = stage.start(slots=2, resource="licence=4")

    eventually(lambda: study.status is Status.PAUSED)
    page = one_line(stage.command("status", "staged"))
    assert "the resource function requesting:wrong(config) has not said what a trial needs" in page
    assert "it raised ValueError: no such size (requesting.py, line " in page
    correct(stage)

    assert worker.exit_code(60.0) == 0
    assert "the resource function has not decided" in one_line(worker.output())
    rows = stage.rows(trial)
    assert sorted(row.draw for row in rows) == list(range(12))
    assert {row.resource_class for row in rows} == {"licence=1"}


@pytest.mark.nightly
def test_study_pauses_if_its_function_asks_for_a_65th_set_of_resources(sqlite_stage):
    space = {"size": studydb.randint(1, 10**6), "how": "shapes"}
    study = create(sqlite_stage, "wrong", space=space, num_trials=100)
    worker = sqlite_stage.start(slots=4, resource="licence=1000")

    eventually(lambda: study.status is Status.PAUSED)
    page = one_line(sqlite_stage.command("status", "staged"))
    assert "64 different sets of resources already" in page
    correct(sqlite_stage)

    worker.end()
    classes = {row.resource_class for row in sqlite_stage.rows(trial)}
    assert 60 < len(classes) <= 64


@pytest.mark.slow
def test_trials_proposed_by_a_model_get_the_resources_of_their_configs(sqlite_stage):
    create(sqlite_stage, searcher=studydb.OptunaSearch("TPESampler", seed=1), num_trials=4)

    assert sqlite_stage.run(slots=2, resource="licence=4") == 0

    rows = sqlite_stage.rows(trial)
    assert len(rows) == 4
    assert all(row.resource_class == f"licence={row.params['size']}" for row in rows)


def test_resource_function_whose_description_was_changed_is_not_run(sqlite_stage):
    study = create(sqlite_stage)
    code = structs.replace(study.record.request_code, workdir="/")

    with pytest.raises(Untrusted, match=r"The resource function 'requesting:licences' was changed"):
        trusted_code(dataclasses.replace(study.record, request_code=code), load_keyring())


def test_clone_of_a_study_has_the_same_resource_function(sqlite_stage):
    clone = create(sqlite_stage).clone("other")

    assert clone.record.resources == sqlite_stage.study.record.resources
    assert clone.record.request_code.signatures != sqlite_stage.study.record.request_code.signatures
    clone.close()


@pytest.mark.slow
@pytest.mark.row("B4")
def test_enqueued_trial_has_the_resources_of_the_function_or_those_given_to_enqueue(stage):
    study = create(stage, num_trials=20)

    first = study.enqueue({"size": 3})
    second = study.enqueue({"size": 3}, resources="gpus=1")
    third = study.enqueue({})  # its size is drawn under the lock of the study's row

    assert stage.trial(first).resource_class == "licence=3"
    assert stage.trial(second).resource_class == "gpus=1"
    drawn = stage.trial(third)
    assert drawn.resource_class == f"licence={drawn.params['size']}"


def test_trial_for_which_the_function_raises_is_not_enqueued(sqlite_stage):
    study = create(sqlite_stage, "wrong")

    with pytest.raises(TrainableError, match="No trial was added") as refused:
        study.enqueue({"size": 3})

    assert "it raised ValueError: no such size" in str(refused.value)
    assert "resources={'gpus': 1}" in str(refused.value)
    assert (sqlite_stage.rows(trial), study.status) == ([], Status.RUNNING)


def test_own_loop_asks_the_resource_function(sqlite_stage):
    study = create(sqlite_stage, num_trials=3)

    for _ in range(3):
        with study.ask() as run:
            run.report({"loss": 1.0})

    rows = sqlite_stage.rows(trial)
    assert all(row.resource_class == f"licence={row.params['size']}" for row in rows)
