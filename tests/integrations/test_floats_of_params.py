"""
Parameters of `uniform`, `loguniform` and `quniform` are floats wherever they are read.

PostgreSQL returns a double of 1e16 or more as an integer.
"""

import pytest
from harness.arrange import change

import studydb

pytestmark = pytest.mark.each_database

SPACE = {
    "net": {"x": studydb.loguniform(1.0, 1e23)},
    "q": studydb.quniform(0, 1e20, 1e17),
    "k": studydb.randint(1, 2**53),
    "act": studydb.choice([10, "relu"]),
}
PARAMS = {"net": {"x": 7.234567890123456e20}, "q": 1e17, "k": 2**53, "act": 10}


@pytest.fixture
def study(create_study, storage_url):
    return create_study("floats", num_trials=3, space=SPACE, storage=storage_url)


def same(values, others):
    """Whether two dicts are equal, and so are the types of their values."""
    return values == others and types(values) == types(others)


def types(value):
    if isinstance(value, dict):
        return {key: types(one) for key, one in value.items()}
    return type(value)


def test_own_loop_and_study_give_enqueued_params_their_types(study):
    study.enqueue(PARAMS)

    with study.ask() as trial:
        trial.report({"loss": 0.5})

    assert same(trial.params, PARAMS)
    assert same(trial.config, PARAMS)
    assert same(study.best_params, PARAMS)
    assert same(study.trial(0).config, PARAMS)
    assert same(study.trials[0].params, PARAMS)


def test_double_whose_shortest_decimal_is_another_integer_stays_the_same_double(study):
    study.enqueue({"net": {"x": 1e23}})

    with study.ask() as trial:
        trial.report({"loss": 0.5})

    assert trial.params["net"]["x"] == study.best_params["net"]["x"] == 1e23


def test_drawn_params_have_their_types(create_study, storage_url):
    space = {"x": studydb.uniform(1e17, 1e20), "net": {"y": studydb.loguniform(1e17, 1e23)}}
    study = create_study("drawn", num_trials=3, space=space, storage=storage_url)

    while (trial := study.ask()) is not None:
        with trial:
            trial.report({"loss": trial.number})
        assert same(trial.params, trial.config)

    for each in study.trials:
        assert types(each.params) == types(each.config) == {"x": float, "net": {"y": float}}


def test_changed_params_have_their_types(study):
    number = study.enqueue(PARAMS)
    study.pause(number)

    study.resume(number, **{"net/x": 3e22, "q": 1e20})

    found = study.trial(number)
    assert same(found.changed, {"net/x": 3e22, "q": 1e20})
    assert same(found.config, PARAMS | {"net": {"x": 3e22}, "q": 1e20})
    assert same(found.params, PARAMS)
    with study.ask() as trial:
        trial.report({"loss": 0.5})
    assert same(trial.params, PARAMS)
    assert same(trial.config, found.config)


def test_params_that_do_not_fit_the_space_are_shown_as_they_are(study):
    study.enqueue(PARAMS)
    wrong = '{"net": 5, "q": 150000000000000000, "k": [1], "act": {"b": 100000000000000000}}'
    change(study.database, f"UPDATE trial SET params = '{wrong}'")

    (found,) = study.trials

    wrong_params = {"net": 5, "q": 150000000000000000, "k": [1], "act": {"b": 10**17}}
    assert same(found.params, wrong_params)
