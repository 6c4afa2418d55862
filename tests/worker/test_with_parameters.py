"""Objects bound to a function or class: how they are stored and loaded, and which are refused."""

import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from fleet.trainables import bound
from fleet.workers import TRAINABLES

import studydb
from studydb.artifacts import digest_of, fetch_parameter
from studydb.db.schema import result, trainable
from studydb.domain.errors import (
    CheckpointError,
    StorageDenied,
    StorageUnreachable,
    TrainableError,
)
from studydb.operations import create as creating
from studydb.operations.create import load
from studydb.settings import load_keyring
from studydb.study import creation, storage
from studydb.trainables import (
    StoredParameter,
    check_trusted,
    describe_with_parameters,
    finding,
    with_parameters,
)

ARRAY = np.arange(6_553_600, dtype=np.float64)
"""50 MiB of numbers."""


@pytest.fixture(autouse=True)
def _module(monkeypatch):
    """Give the module `fleet.trainables.bound` the name `bound`, by which workers import it."""
    monkeypatch.syspath_prepend(str(TRAINABLES))
    monkeypatch.setitem(sys.modules, "bound", bound)
    for each in (bound.summing, bound.yielding, bound.taking_any, bound.Summing):
        monkeypatch.setattr(each, "__module__", "bound")
    monkeypatch.setattr(bound, "__name__", "bound")


def objects(folder):
    return [path for path in Path(folder).rglob("0/0-*") if path.is_file()]


@pytest.mark.nightly
def test_array_of_50_mib_is_stored_once_and_loaded_once_for_all_trials(sqlite_stage):
    stage, store = sqlite_stage, sqlite_stage.folder / "store"
    given = with_parameters(bound.summing, data=ARRAY, scale=2)
    study = stage.create(given, num_trials=3, checkpoints=store)

    assert stage.run() == 0

    row = stage.row(trainable)
    assert (row.kind, row.name) == ("bound", "bound:summing")
    assert len(row.source) < 1000
    assert sorted(path.stat().st_size > len(ARRAY) * 8 for path in objects(store)) == [False, True]
    found = stage.rows(result)
    assert [each.value for each in found] == [float(ARRAY.sum()) * 2 + 0.25] * 3
    assert len({each.metrics["parent"] for each in found}) == 1
    assert [stage.attempts(number)[0].start for number in range(3)] == ["warm"] * 3
    check_trusted(load(study.database, "staged").trainable, study.record.uuid, load_keyring())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yielding", "taking_any", "Summing"])
def test_objects_reach_a_generator_a_function_with_kwargs_and_the_setup_of_a_class(
    postgres_stage, name
):
    """With PostgreSQL the default store is the database: the trainable's row has the pickles."""
    stage = postgres_stage
    stage.create(with_parameters(getattr(bound, name), data=[1, 2, 4]))

    assert stage.run() == 0

    assert stage.trial().last_value == 7
    assert stage.study.record.trainable.form == ("class" if name == "Summing" else "function")


@pytest.mark.nightly
@pytest.mark.parametrize(("damage", "start"), [("removed", "auto"), ("changed", "fresh")])
def test_trial_is_given_back_if_a_bound_object_is_missing_or_changed(sqlite_stage, damage, start):
    stage, store = sqlite_stage, sqlite_stage.folder / "store"
    given = with_parameters(bound.summing, data=np.ones(9))
    stage.create(given, checkpoints=store)
    (file,) = objects(store)
    before = file.read_bytes()
    file.unlink() if damage == "removed" else file.write_bytes(before[:-1] + b"x")

    worker = stage.start(start=start)

    assert worker.exit_code(30.0) == 1
    assert "The parameter 'data' of the trainable 'bound:summing' cannot be loaded" in (
        worker.output()
    )
    assert ("is missing" if damage == "removed" else "is damaged") in worker.output()
    stage.expect_released()

    stage.study.set(trainable=given, workdir=TRAINABLES)  # stores the bytes again
    assert file.read_bytes() == before
    assert stage.run() == 0
    assert stage.trial().last_value == 9.25


@pytest.mark.nightly
def test_bound_objects_stay_in_the_old_store_if_the_study_changes_its_store(sqlite_stage):
    stage = sqlite_stage
    given = with_parameters(bound.summing, data=np.ones(9))
    stage.create(given, num_trials=2, checkpoints=stage.folder / "first")
    assert stage.run(max_trials=1) == 0

    stage.study.set(checkpoints=stage.folder / "second")

    assert stage.run() == 0
    assert stage.trial(1).last_value == 9.25
    assert objects(stage.folder / "second") == []


def test_try_gives_the_objects_to_the_function(sqlite_stage):
    sqlite_stage.create(with_parameters(bound.summing, data=np.ones(9)))

    assert "loss 9.25" in sqlite_stage.command("try", "staged")


@pytest.mark.slow
def test_data_larger_than_the_database_takes_is_refused_and_no_study_is_made(postgres_stage):
    given = with_parameters(bound.summing, data=np.zeros(3 << 20))

    with pytest.raises(TrainableError, match=r"24\.0 MiB, and the database takes at most 16 MiB"):
        postgres_stage.create(given)

    with pytest.raises(studydb.UnknownStudy):
        studydb.load_study("staged", storage=postgres_stage.storage)


@pytest.mark.nightly
def test_existing_study_stores_objects_again_only_if_they_have_changed(sqlite_url, tmp_path):
    def create(value, **options):
        given = with_parameters(bound.summing, data=np.full(3, value))
        return studydb.create_study(
            "digits",
            given,
            metric="loss",
            mode="min",
            num_trials=1,
            storage=sqlite_url,
            checkpoints=tmp_path / "store",
            workdir=TRAINABLES,
            **options,
        )

    first = create(1.0)
    with pytest.raises(studydb.StudyExists):
        create(2.0)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [first.record.uuid]
    same = create(1.0, load_if_exists=True)
    assert len(objects(tmp_path / "store")) == 1
    assert same.record.trainable == first.record.trainable
    changed = create(2.0, load_if_exists=True)
    assert len(objects(tmp_path / "store")) == 2
    assert changed.record.trainable != first.record.trainable

    for study in (first, same, changed):
        study.close()
    studydb.delete_study("digits", storage=sqlite_url)
    assert objects(tmp_path / "store") == []


@pytest.fixture
def create(sqlite_url, tmp_path):
    """A function that creates the study "digits" with the objects `values` in a store."""

    def create(store=tmp_path / "store", **values):
        return studydb.create_study(
            "digits",
            with_parameters(bound.taking_any, **values),
            metric="loss",
            mode="min",
            num_trials=1,
            storage=sqlite_url,
            checkpoints=store,
            workdir=TRAINABLES,
        )

    return create


@pytest.mark.nightly
def test_objects_are_removed_if_a_later_object_cannot_be_pickled(create, tmp_path):
    with pytest.raises(TrainableError, match="'other' cannot be sent to workers"):
        create(data=np.ones(9), other=threading.Lock())

    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("error", "is_kept"), [(StorageUnreachable("cut"), True), (StorageDenied("no right"), False)]
)
def test_objects_are_removed_only_if_no_study_can_have_been_stored(
    create, tmp_path, monkeypatch, error, is_kept
):
    def create_and_lose_the_reply(database, new):
        if is_kept:
            creating.create(database, new)
        raise error

    monkeypatch.setattr(creation, "create", create_and_lose_the_reply)
    monkeypatch.setattr(storage, "CONTROL_PATIENCE_S", 0.0)

    with pytest.raises(type(error)):
        create(data=np.ones(9))

    assert len(objects(tmp_path / "store")) == is_kept


@pytest.mark.nightly
def test_name_that_is_taken_is_refused_before_the_objects_are_pickled(create):
    create(data=1).close()

    with pytest.raises(studydb.StudyExists, match=r"A study 'digits' already exists in .* delete"):
        create(data=threading.Lock())


@pytest.mark.nightly
def test_error_of_the_store_names_the_object_and_the_store(create):
    with pytest.raises(CheckpointError) as error:
        create(Path("/proc/store"), data=1)  # tests may run as root, who cannot write here either

    assert str(error.value).startswith(
        "The parameter 'data' could not be stored in file:///proc/store: [Errno 2]"
    )
    assert "Training continues" not in str(error.value)


@pytest.mark.nightly
def test_store_that_is_missing_on_this_host_is_named_with_the_object(create, tmp_path):
    study = create(data=1)
    stores = study.database.locations.checkpoint_stores(study.record)
    shutil.rmtree(tmp_path / "store")

    with pytest.raises(TrainableError) as error:
        finding.load(
            study.record.trainable,
            [TRAINABLES],
            fetch=lambda each: fetch_parameter(stores, each.url, digest=each.digest),
        )

    assert "The parameter 'data' of the trainable 'bound:taking_any' cannot" in str(error.value)
    assert f"directory {tmp_path / 'store'} does not exist" in str(error.value)


def test_objects_for_the_database_are_refused_as_soon_as_they_are_too_large():
    given = with_parameters(bound.taking_any, a=bytes(9 << 20), b=bytes(9 << 20), c=bytes(9 << 20))
    kept = []

    def keep(name, data):
        kept.append(name)
        return StoredParameter("inline:", "", len(data), data)

    with pytest.raises(TrainableError, match=r"have at least 18\.0 MiB"):
        describe_with_parameters(given, workdir=TRAINABLES, store=keep)

    assert kept == ["a", "b"]


@pytest.mark.nightly
def test_neither_key_nor_password_is_stored_with_the_objects(sqlite_stage):
    store = sqlite_stage.folder / "store"
    sqlite_stage.create(with_parameters(bound.summing, data=np.ones(9)), checkpoints=store)

    (key,) = load_keyring().keys
    kept = [sqlite_stage.row(trainable).source, *(path.read_bytes() for path in objects(store))]
    assert not any(secret in each for each in kept for secret in (key.secret, b"sqlite:", b"PG"))
    assert {digest_of(each)[32:36] for each in kept[1:]} == {objects(store)[0].name[2:6]}


def unnamed(config, /, data): ...
def positional(config, data, /): ...


class TwoObjects(studydb.Trainable):
    def setup(self, config, data, other): ...
    def step(self): ...


@pytest.mark.parametrize(
    ("code", "names", "words"),
    [
        (bound.summing, ["config"], "studydb itself gives 'config' to summing"),
        (bound.summing, ["data", "trial"], "studydb itself gives 'trial' to summing"),
        (bound.summing, ["reporter"], "studydb itself gives 'reporter'"),
        (unnamed, ["config"], "studydb itself gives 'config'"),
        (bound.taking_any, ["checkpoint_dir"], "studydb itself gives 'checkpoint_dir'"),
        (bound.summing, ["date"], "summing takes no keyword argument 'date'"),
        (positional, ["data"], "positional takes no keyword argument 'data'"),
        (bound.Summing, ["date"], "Summing.setup takes no keyword argument 'date'"),
        (bound.Summing, ["config"], "studydb itself gives 'config' to Summing.setup"),
        (bound.summing, [], "requires 'data'"),
        (
            TwoObjects,
            ["data"],
            "TwoObjects.setup cannot be called with the arguments that it would get: missing",
        ),
        ("bound:summing", ["data"], "give a function or a class, not its name"),
        (dict, ["data"], "does not inherit studydb.Trainable"),
    ],
)
def test_code_that_cannot_be_called_with_the_given_objects_is_refused(code, names, words):
    with pytest.raises(TrainableError) as error:
        with_parameters(code, **dict.fromkeys(names, 1))

    assert words in str(error.value)


@pytest.mark.nightly
def test_object_that_cannot_be_pickled_is_refused(sqlite_stage):
    with pytest.raises(TrainableError, match="'data' cannot be sent to workers"):
        sqlite_stage.create(with_parameters(bound.summing, data=(each for each in ())))
