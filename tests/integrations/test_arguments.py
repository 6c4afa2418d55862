"""
A wrong argument in Python raises an error that names the cure, and nothing is changed.

NumPy integers are accepted, and so are paths for checkpoints.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest

import studydb
from studydb.domain.errors import UsageError

WRONG = [
    (
        {"space": {"x": (0, 1)}},
        "'x' is the bare list or tuple [0, 1], which does not say how to sample. Write un",
    ),
    ({"space": ["x"]}, "The space is ['x'], which is not a dict"),
    ({"stop": 3}, "stop is 3; give metrics and bounds, such as {'loss': 3} or ['loss>=3']"),
    ({"stop": np.array(3)}, "stop is array(3); give metrics and bounds"),
    ({"stop": [3]}, "The stop rule 3 is not a comparison; write for example 'loss>=3'"),
    ({"stop": {3: 4}}, "The metric name is 3, an int; give a text"),
    ({"stop": {"loss": "much"}}, "The stop rule for 'loss' needs a number, not 'much'"),
    ({"checkpoints": 3}, "checkpoints is 3; give a directory that all workers see, as a path"),
    ({"checkpoints": "ftp://b/x"}, "Checkpoints cannot go to 'ftp://b/x'"),
    ({"checkpoints": Path(__file__)}, "is a file; give a directory"),
    ({"checkpoints": np.array([1, 2])}, "checkpoints is array([1, 2]); give a directory"),
    ({"checkpoints": "a\0b"}, "The argument checkpoints holds a NUL character"),
    ({"checkpoints": "\ud800"}, "The argument checkpoints holds '\\ud800', which is not Unicode"),
    ({"storage": 3}, "storage is 3; give a URL, such as 'sqlite:///studydb.db'"),
    ({"storage": Path("x.db")}, "give a URL, such as 'sqlite:///studydb.db'"),
    ({"storage": "x.db"}, "'x.db' is no storage URL. Write sqlite:///studydb.db or"),
    ({"name": 3}, "The study name is 3, an int; give a text"),
    ({"metric": None}, "The metric name is None, a NoneType; give a text"),
    ({"mode": "minimize"}, "mode is 'minimize'; it must be 'min' or 'max'"),
    ({"num_trials": "10"}, "num_trials is '10'; it must be an integer of 1 or more"),
    ({"num_trials": 10.0}, "num_trials is 10.0; it must be an integer of 1 or more"),
    ({"num_trials": True}, "num_trials is True; it must be an integer of 1 or more"),
    ({"max_failures": None}, "max_failures is None; it must be an integer of -1 or more"),
    ({"fail_fast": np.array([1, 2])}, "fail_fast is array([1, 2]); it must be True or False"),
    ({"load_if_exists": "no"}, "load_if_exists is 'no'; it must be True or False"),
    ({"scheduler": "ASHA"}, "scheduler is 'ASHA'; give an object, such as studydb.ASHA("),
    ({"scheduler": studydb.ASHA}, "give an object, such as studydb.ASHA(max_t=27)"),
    ({"scheduler": studydb.RandomSearch()}, "scheduler is RandomSearch"),
    ({"searcher": studydb.ASHA(max_t=3)}, "searcher is ASHA"),
    ({"workdir": "nowhere"}, "workdir is 'nowhere'; it must be a directory"),
    ({"workdir": 3}, "workdir is 3; it must be a directory"),
    ({"workdir": "x" * 5000}, "xx'; it must be a directory"),
]


@pytest.mark.parametrize(("argument", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_argument_raises_a_helpful_error_and_creates_nothing(here, argument, message):
    given = {"name": "digits", "metric": "loss", "mode": "min", **argument}

    with pytest.raises(UsageError) as error:
        studydb.create_study(given.pop("name"), None, **given)

    assert message in str(error.value)
    assert list(here.iterdir()) == []


@pytest.fixture
def study(create_study, sqlite_url):
    return create_study("digits", num_trials=np.int64(2), storage=sqlite_url)


REFUSED = [
    (lambda study: study.extend(num_trials="3"), "num_trials is '3'; it must be an integer"),
    (lambda study: study.extend(num_trials=1.5), "num_trials is 1.5; it must be an integer"),
    (lambda study: study.extend(num_trials=0), "num_trials is 0; it must be an integer of 1 or"),
    (
        lambda study: study.extend(num_trials=10**20),
        f"num_trials is {10**20}; it must be an integer from 1 to {2**62}",
    ),
    (lambda study: study.pause([0]), "A trial's number is [0]; it must be an integer"),
    (lambda study: study.stop("0"), "A trial's number is '0'; it must be an integer"),
    (lambda study: study.enqueue([1]), "Params are list, not a dict"),
    (lambda study: study.enqueue({}, priority="high"), "priority is 'high'; it must be an"),
    (lambda study: study.enqueue({}, priority=2**31), "priority is 2147483648; it must be an"),
    (lambda study: study.extend(num_trials=2**63), "num_trials is 9223372036854775808; it must"),
    (lambda study: study.enqueue({}, checkpoint_step=5), "is 5, but no checkpoint is given"),
    (lambda study: study.ask(timeout="soon"), "timeout is 'soon'; it must be a number of sec"),
    (lambda study: study.rename(3), "The study name is 3, an int; give a text"),
    (lambda study: study.enqueue({}, tags=np.array(3)), "tags is array(3); give a list of texts"),
    (lambda study: study.set(workdir=True), "workdir=True says where workers search for a"),
    (lambda study: study.stop(now="no"), "now is 'no'; it must be True or False"),
    (lambda study: study.stop(0, discard_checkpoints="no"), "discard_checkpoints is 'no'; it must"),
    (lambda study: study.retry(0, from_scratch="no"), "from_scratch is 'no'; it must be True or"),
    (lambda study: study.invalidate(0, reason="r", undo="no"), "undo is 'no'; it must be True or"),
    (lambda study: study.pin(0, remove="no"), "remove is 'no'; it must be True or False"),
    (lambda study: study.gc(dry_run="no"), "dry_run is 'no'; it must be True or False"),
    (
        lambda study: study.trials_dataframe(invalidated="no"),
        "invalidated is 'no'; it must be True",
    ),
    (lambda study: study.results_dataframe(invalidated=1), "invalidated is 1; it must be True or"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_wrong_argument_of_a_study_method_raises_an_error_and_changes_nothing(study, call, message):
    with pytest.raises(UsageError) as error:
        call(study)

    assert message in str(error.value)
    assert study.record.num_trials == 2
    assert study.counts.total == 0


def test_study_is_not_pickled_and_the_error_says_how_to_load_it_elsewhere(study):
    with pytest.raises(TypeError, match=r"call studydb.load_study\('digits', storage=…\)"):
        pickle.dumps(study)


@pytest.mark.parametrize("metric", ["training_iteration", "done"])
def test_reserved_key_of_reports_is_refused_as_the_metric_of_a_study(sqlite_url, metric):
    with pytest.raises(studydb.InvalidName, match=f"the key {metric!r} is not a metric"):
        studydb.create_study(
            "digits", None, space={}, metric=metric, mode="min", storage=sqlite_url
        )


def test_error_for_required_tags_of_a_wrong_type_names_the_argument(create_study):
    with pytest.raises(UsageError, match="require is 'a100'; give a list of texts"):
        create_study("digits", require="a100")


def test_numpy_integers_are_accepted_as_integers(study):
    assert study.extend(num_trials=np.int32(3)) == 5
    assert study.enqueue({}, priority=np.int8(1)) == 0
    study.stop(np.int64(0))
    assert study.counts.terminated == 1


@pytest.mark.parametrize(
    ("checkpoints", "url"),
    [("inline:", "inline:"), (Path("/nonexistent/kept"), "file:///nonexistent/kept")],
    ids=["inline", "path"],
)
def test_checkpoints_may_be_inline_or_a_path(create_study, sqlite_url, checkpoints, url):
    study = create_study("digits", storage=sqlite_url, checkpoints=checkpoints)

    assert study.record.checkpoints == url


def test_loading_or_deleting_by_a_name_of_a_wrong_type_raises_a_usage_error(sqlite_url):
    for call in (studydb.load_study, studydb.delete_study):
        with pytest.raises(UsageError, match="The study name is 3"):
            call(3, storage=sqlite_url)


def test_deletion_with_a_wrong_missing_ok_is_refused(study, sqlite_url):
    with pytest.raises(UsageError, match="missing_ok is 'no'; it must be True or False"):
        studydb.delete_study(study.name, storage=sqlite_url, missing_ok="no")

    assert study.counts.total == 0


def test_error_for_an_existing_name_suggests_loading_or_deleting_the_study(study, sqlite_url):
    with pytest.raises(studydb.StudyExists) as error:
        studydb.create_study("digits", None, metric="loss", mode="min", storage=sqlite_url)

    for way in ("load_if_exists=True", "--if-not-exists", "`studydb delete digits --yes`"):
        assert way in str(error.value)


def test_misspelled_attribute_of_studydb_lets_python_suggest_the_right_name():
    with pytest.raises(AttributeError) as error:
        _ = studydb.AHSA

    assert (error.value.name, error.value.obj) == ("AHSA", studydb)
