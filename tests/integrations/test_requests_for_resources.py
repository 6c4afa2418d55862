"""People say what trials need: in Python, on the command line, and where they are wrong."""

import itertools

import pytest

import studydb
from studydb.domain.resources import Resources

SPACE = {"lr": studydb.uniform(0.0, 1.0)}


def train(config):
    return config["lr"]


@pytest.fixture
def make(create_study, storage_url):
    """Create a study of nine trials."""
    names = (f"study-{number}" for number in itertools.count())

    def make(trainable=None, **options):
        given = {"storage": storage_url, "space": SPACE, "num_trials": 9}
        return create_study(next(names), trainable, **given | options)

    return make


@pytest.fixture
def study(make):
    return make(resources={"gpus": 1})


def class_of(study, number):
    with study.database.begin(write=False) as txn:
        _, rows = txn.raw(f"SELECT resource_class FROM trial WHERE number = {number}")
    return rows[0][0]


def test_a_study_keeps_what_its_trials_need(study, load_study, storage_url):
    again = load_study(study.name, storage_url)

    assert again.record.resources == Resources(gpus=1)
    assert again.record.require == ()


def test_a_trial_can_need_something_else(study):
    number = study.enqueue({"lr": 0.5}, resources="gpus=2, licence=1")

    assert class_of(study, number) == "gpus=2, licence=1"


def test_a_clone_needs_what_its_parent_needs(study):
    number = study.enqueue({"lr": 0.5}, resources={"gpus": 2})
    study.stop(number)

    (clone,) = study.retry(number)

    assert class_of(study, clone) == "gpus=2"


def test_set_changes_the_study_or_single_trials(study):
    first, second = (study.enqueue({"lr": 0.1 * n}) for n in (1, 2))

    study.set(resources={"gpus": 3})
    study.set_resources("cpus=1", second)

    assert study.record.resources == Resources(gpus=3)
    assert (class_of(study, first), class_of(study, second)) == ("", "cpus=1")


def test_a_function_says_what_it_needs(make, monkeypatch):
    monkeypatch.setattr(train, "default_resources", {"gpus": 2}, raising=False)

    assert make(train).record.resources == Resources(gpus=2)
    assert make(train, resources={}).record.resources == Resources()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resources": "gpu=1"}, "the name is 'gpus'"),
        ({"resources": {"gpus": -1}}, "from 0 to"),
        ({"resources": [1]}, "amounts by name"),
        ({"require": "a100"}, "list of texts"),
        ({"require": [""]}, "tag"),
    ],
)
def test_a_wrong_request_creates_nothing(make, options, says):
    with pytest.raises(studydb.UsageError, match=says):
        make(**options)


def test_wrong_requests_of_the_command_line_are_usage_errors(console, study):
    for words in (
        ["enqueue", study.name, "lr=0.1", "--resources", "gpus"],
        ["set", study.name, "resources=gpu=1"],
        ["set", study.name, "--trial", "0"],
        ["set", study.name, "resources=gpus=1", "keep=best=1", "--trial", "0"],
    ):
        assert "Traceback" not in console(*words, code=2).error
