"""Requests for resources, in Python and on the command line; wrong requests are refused."""

import itertools
import re
from functools import partial

import pytest

import studydb
from studydb.domain.errors import TrainableError
from studydb.domain.resource_function import ResourceFunction
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


def test_what_trials_need_is_stored_with_their_study(study, load_study, storage_url):
    again = load_study(study.name, storage_url)

    assert again.record.resources == Resources(gpus=1)
    assert again.record.require == ()


def test_an_enqueued_trial_can_ask_for_other_resources_than_its_study(study):
    number = study.enqueue({"lr": 0.5}, resources="gpus=2, licence=1")

    assert class_of(study, number) == "gpus=2, licence=1"


def test_a_clone_needs_what_its_parent_needs(study):
    number = study.enqueue({"lr": 0.5}, resources={"gpus": 2})
    study.stop(number)

    (clone,) = study.retry(number)

    assert class_of(study, clone) == "gpus=2"


def test_resources_of_the_study_and_of_single_trials_can_be_changed(study):
    first, second = (study.enqueue({"lr": 0.1 * n}) for n in (1, 2))

    study.set(resources={"gpus": 3})
    study.set_resources("cpus=1", second)

    assert study.record.resources == Resources(gpus=3)
    assert (class_of(study, first), class_of(study, second)) == ("", "cpus=1")


def test_default_resources_of_a_function_are_used_unless_the_study_is_created_with_resources(
    make, monkeypatch
):
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
def test_a_wrong_request_for_resources_is_refused(make, options, says):
    with pytest.raises(studydb.UsageError, match=says):
        make(**options)


def test_wrong_requests_and_wrong_uses_of_the_trial_option_are_usage_errors(console, study):
    for words in (
        ["enqueue", study.name, "lr=0.1", "--resources", "gpus"],
        ["set", study.name, "resources=gpu=1"],
        ["set", study.name, "--trial", "0"],
        ["set", study.name, "resources=gpus=1", "keep=best=1", "--trial", "0"],
    ):
        assert "Traceback" not in console(*words, code=2).error


def test_show_prints_what_a_trial_asks_for_and_that_it_fits_no_worker(make, console):
    study = make()
    study.enqueue({"lr": 0.1}, resources={"gpus": 4, "memory_gb": 8})
    study.enqueue({"lr": 0.2})
    says = "Trial 0 fits no live worker: it asks for gpus=4, memory_gb=8; no worker is alive."

    page = console("show", study.name, "0").out
    document = console("show", study.name, "0", "--format", "json").json

    assert re.search(r"^asks +gpus=4, memory_gb=8$", page, re.MULTILINE)
    assert says in " ".join(page.split())
    assert document["asks"] == {"gpus": 4, "memory_gb": 8}
    assert document["resources"] == [says]
    assert max(map(len, page.splitlines())) <= 80
    other = console("show", study.name, "1")
    assert re.search(r"^asks +nothing$", other.out, re.MULTILINE)
    status = " ".join(console("status", study.name).out.split())
    assert says in status
    assert "asks for nothing" not in status  # trial 1 fits every worker


def test_show_says_nothing_of_workers_for_a_trial_that_has_ended(make, console):
    study = make(resources={"licence": 3})
    study.enqueue({"lr": 0.1})
    study.stop(0)

    document = console("show", study.name, "0", "--format", "json").json

    assert (document["asks"], document["resources"]) == ({"licence": 3}, [])


def test_show_says_nothing_of_resources_in_a_study_without_requests(make, console):
    study = make()
    study.enqueue({"lr": 0.1})

    assert "asks" not in console("show", study.name, "0").out
    assert console("show", study.name, "0", "--format", "json").json["asks"] is None


MODULE = """
import studydb

class Fixed(studydb.Trainable):
    default_resources = {"gpus": 2}

class Heir(Fixed):
    pass

class Sized(studydb.Trainable):
    @staticmethod
    def default_resources(config):
        return {"gpus": 2 if config["lr"] > 0.5 else 1}

class Wrong(studydb.Trainable):
    default_resources = {"gpus": -1}

def train(config):
    return config["lr"]

train.default_resources = "licence=1"

def plain(config):
    return config["lr"]
"""


@pytest.fixture
def module(tmp_path):
    """Write a module into a folder; return the folder."""

    def write(text=MODULE, name="sized_code"):
        (tmp_path / f"{name}.py").write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("name", "resources"),
    [
        ("Fixed", Resources(gpus=2)),
        ("Heir", Resources(gpus=2)),
        ("train", Resources(custom={"licence": 1})),
        ("Sized", ResourceFunction("sized_code:Sized")),
        ("plain", None),
    ],
)
def test_default_resources_are_read_from_code_that_is_named_by_an_import_path(
    make, module, name, resources
):
    study = make(f"sized_code:{name}", workdir=module())

    assert study.record.resources == resources
    assert (study.record.request_code is None) == (not study.record.asks_by_config)


def test_resources_of_the_study_replace_the_default_resources_of_its_code(make, module):
    folder = module()

    assert make("sized_code:Fixed", workdir=folder, resources={}).record.resources == Resources()
    sized = make("sized_code:Fixed", workdir=folder, resources="sized_code:Sized")
    assert sized.record.resources == ResourceFunction("sized_code:Sized")


def test_create_command_reads_default_resources_and_resource_functions(
    console, module, monkeypatch
):
    monkeypatch.chdir(module())
    options = ("--metric", "loss", "--mode", "min", "--num-trials", "2", "--param", "lr=0.1")

    console("create", "fixed", "--trainable", "sized_code:Fixed", *options)
    console(
        "create",
        "sized",
        "--trainable",
        "sized_code:plain",
        *options,
        "--resources",
        "sized_code:Sized",
    )

    assert "gpus=2" in console("show", "fixed").out
    assert "sized_code:Sized(config)" in console("show", "sized").out


def test_a_module_without_default_resources_is_not_imported(make, module):
    study = make("heavy:train", workdir=module("1 / 0\ndef train(config): ...\n", name="heavy"))

    assert study.record.resources is None


def test_default_resources_that_cannot_be_read_are_refused_with_a_cure(make, module):
    broken = "1 / 0\ndef train(config): ...\ntrain.default_resources = {}\n"

    with pytest.raises(TrainableError) as refused:
        make("broken_code:train", workdir=module(broken, name="broken_code"))
    assert "ZeroDivisionError" in str(refused.value)
    assert "say what trials need: resources= (--resources), {} for nothing" in str(refused.value)
    with pytest.raises(TrainableError, match="from 0 to"):
        make("sized_code:Wrong", workdir=module())


def test_a_class_whose_base_cannot_be_imported_here_has_no_default_resources(make, module):
    text = "from missing_package import Base\nclass Train(Base): ...\n"

    study = make("heir_code:Train", workdir=module(text, name="heir_code"))

    assert study.record.resources is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def needs(config):\n    raise ValueError('no')\n", "it raised ValueError: no"),
        ("def needs(config):\n    return {'gpus': -1}\n", "must be a number from 0"),
        ("def needs():\n    return {}\n", "it raised TypeError"),
        ("needs = 3\n", "name a function or class"),
        ("import missing_package\ndef needs(config): ...\n", "missing_package"),
    ],
)
def test_a_resource_function_that_cannot_be_used_is_refused_when_the_study_is_created(
    make, module, text, says
):
    with pytest.raises(TrainableError) as refused:
        make(resources="needs_code:needs", workdir=module(text, name="needs_code"))

    message = str(refused.value)
    assert "The resource function needs_code:needs(config) cannot be used: " in message
    assert says in message
    assert "Correct it, and try again." in message


def test_a_resource_function_that_workers_cannot_import_is_refused(make):
    with pytest.raises(studydb.UsageError, match="where workers cannot import it"):
        make(resources=lambda config: {"gpus": config["lr"]})


def test_an_object_without_a_name_is_refused_as_a_resource_function(make):
    needs = partial(dict, gpus=1)

    with pytest.raises(studydb.InvalidSpec) as refused:
        make(resources=needs)

    message = str(refused.value)
    assert "resources is an object of the type partial, which has no name by which" in message
    assert "At the top level of a module, write a function `def needs(config)`" in message


def test_a_default_resource_function_of_code_that_is_sent_by_value_is_refused(make):
    def local(config):
        return config["lr"]

    local.default_resources = lambda config: {"gpus": config["lr"]}

    with pytest.raises(studydb.UsageError, match="is sent to them by value"):
        make(local)


def test_set_does_not_replace_a_resource_function_by_amounts(make, module):
    study = make(resources="sized_code:Sized", workdir=module())

    with pytest.raises(studydb.NotAllowed, match="is computed by sized_code:Sized"):
        study.set(resources={"gpus": 1})
