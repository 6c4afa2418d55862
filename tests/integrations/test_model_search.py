"""Studies whose searcher has a model, in own loops, in workers and from the command line."""

from collections import Counter

import pytest
from fleet.workers import TRAINABLES

import studydb
from studydb.domain.errors import InvalidSpec

SPACE = {
    "x": studydb.uniform(-5, 5),
    "model": {"rate": studydb.loguniform(1e-3, 1), "act": studydb.choice(["relu", [1, None]])},
    "epochs": 3,
}


@pytest.fixture
def create(storage_url, create_study):
    def create(name="search", trainable=None, **options):
        given = {
            "space": SPACE,
            "num_trials": 12,
            "searcher": studydb.OptunaSearch("TPESampler", seed=3, n_startup_trials=4),
            "storage": storage_url,
        }
        return create_study(name, trainable, **given | options)

    return create


def run(study, n):
    """Run `n` trials; return their params."""
    params = []
    for _ in range(n):
        with study.ask() as trial:
            trial.report({"loss": trial.params["x"] ** 2 + trial.params["model"]["rate"]})
        params.append(trial.params)
    return params


def origins(study):
    return Counter(trial.origin for trial in study.trials)


def test_lone_loop_gets_the_points_of_the_model_also_after_restarts(create, storage_url, handles):
    whole = run(create(), 12)
    create("parts")

    parts = []
    for n in (5, 1, 6):
        study = handles(studydb.load_study("parts", storage=storage_url))
        parts += run(study, n)
        study.close()

    assert parts == whole
    study = handles(studydb.load_study("parts", storage=storage_url))
    assert study.ask() is None
    assert study.status == "FINISHED"
    assert origins(study) == {"searcher": 12}


def test_other_seed_gives_other_points(create):
    first = run(create(), 6)
    second = run(create("other", searcher=studydb.OptunaSearch("TPESampler", seed=4)), 6)

    assert first != second


@pytest.mark.nightly
def test_workers_try_each_configuration_once(create):
    study = create(trainable="valued:bowl", num_trials=8, workdir=TRAINABLES)

    study.run(workers=2)

    assert len(study.trials) == 8
    assert len({repr(trial.params) for trial in study.trials}) == 8
    assert set(origins(study)) <= {"searcher", "by index"}


def test_create_command_takes_a_searcher_that_has_a_model(console, storage_url, handles):
    made = console(
        *("create", "digits", "--metric", "loss", "--mode", "min", "--num-trials", "3"),
        *(
            "--param",
            "x=uniform(0,1)",
            "--searcher",
            "OptunaSearch(TPESampler, n_startup_trials=2)",
        ),
    )

    assert made.code == 0, made.err
    study = handles(studydb.load_study("digits", storage=storage_url))
    with study.ask() as trial:
        trial.report({"loss": 1.0})
    assert "OptunaSearch(sampler='TPESampler'" in console("show", "digits").out


def test_nothing_is_created_if_the_searcher_cannot_search_the_space(create, storage_url):
    with pytest.raises(InvalidSpec, match="no parameter"):
        create(space={"epochs": 3})

    with pytest.raises(studydb.UnknownStudy):
        studydb.load_study("search", storage=storage_url)


def test_point_that_a_person_enqueued_is_not_proposed_again(create):
    space = {"x": studydb.choice([1, 2, 3]), "model": {"rate": studydb.randint(1, 2)}}
    study = create(space=space, num_trials=None)
    study.enqueue({"x": 2, "model": {"rate": 1}})

    params = run(study, 6)

    assert study.ask() is None
    assert len({repr(one) for one in params}) == 6
    assert study.status == "FINISHED"
