"""`studydb set` changes a study's trainable, limits, retention, resources and checkpoint store."""

import os
from uuid import uuid4

import pytest
from harness import arrange
from harness.kept_checkpoints import files_below

import studydb
from studydb.artifacts import DirectoryStore, Place, open_store
from studydb.domain.errors import (
    CheckpointError,
    InvalidSpec,
    NotAllowed,
    TrainableError,
    UsageError,
)
from studydb.operations.create import load
from studydb.operations.refresh import refreshed
from studydb.settings import load_keyring
from studydb.trainables import check_trusted

TRIAL, CHECKPOINT = str(uuid4()), str(uuid4())


def store_checkpoint(root, study):
    """Store a checkpoint's bytes as a file below the directory `root`; return the file's URL."""
    store = DirectoryStore(root)
    store.add_study(study.uuid)
    return store.put_bytes(Place(study.uuid, TRIAL, 1, 1, CHECKPOINT), b"abc").url


def test_set_keeps_the_list_of_former_checkpoint_stores(console, database, tmp_path):
    """A store that was set several times is listed at its first and at its last place."""
    study = arrange.new_study(database, name="mine")

    ran = console("set", "mine", f"checkpoints={tmp_path}/a")
    console("set", "mine", "checkpoints=inline:")
    console("set", "mine", f"checkpoints={tmp_path}/b")
    console("set", "mine", f"checkpoints={tmp_path}/a")

    a, b = ((tmp_path / name).as_uri() for name in "ab")
    assert ran.lines == [f"Study 'mine': attempts that start later save checkpoints to {a}."]
    assert load(database, "mine").checkpoints == a
    assert refreshed(database, study).former_checkpoints == (b, "inline:", a, None)
    assert load(database, "mine").guard  # the other settings stay
    events = arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'checkpoints set'")
    assert events == [(4,)]
    assert console("show", "mine", "--format", "json").json["checkpoints"] == a


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "foo=1",
            "'foo' cannot be set. Settings: checkpoints, trainable, keep, resources, cost_limit",
        ),
        ("checkpoint=/x", "Did you mean 'checkpoints'?"),
        ("checkpoints", "'checkpoints' has no value; write checkpoints=VALUE."),
        ("checkpoints=ftp://host", "Checkpoints cannot go to 'ftp://host'."),
        (f"checkpoints={__file__}", f"because {__file__} is a file; give a directory."),
        (f"checkpoints={__file__}/a/b", f"because {__file__} is a file; give a directory."),
        ("checkpoints=/dev/null", "because /dev/null is a file; give a directory."),
    ],
)
def test_set_refuses_unknown_keys_and_invalid_values(console, database, setting, message):
    arrange.new_study(database, name="mine")
    before = arrange.dump(database)

    ran = console("set", "mine", setting, code=2)

    assert message in ran.error
    assert arrange.dump(database) == before


def test_checkpoint_is_looked_up_in_the_stores_of_its_study_only(console, database, tmp_path):
    study = arrange.new_study(database, name="mine")
    for name in "ab":
        console("set", "mine", f"checkpoints={tmp_path / name}")
    stores = database.locations.checkpoint_stores(refreshed(database, study))
    a, b = ((tmp_path / name).as_uri() for name in "ab")
    (tmp_path / "b").mkdir()
    foreign = store_checkpoint(tmp_path / "foreign", study)

    assert stores.current == b
    assert stores.store_of(store_checkpoint(tmp_path / "a", study)) == a
    # No store's URL is the start of `foreign`. So `store_of` takes the part of `foreign` from the
    # study's UUID on, and searches each store for a file of this path. Store `a` has such a file.
    assert stores.store_of(foreign) == a
    DirectoryStore(tmp_path / "a").delete(foreign)
    for store in stores.own():
        open_store(store).add_study(study.uuid)
    with pytest.raises(CheckpointError, match="is missing"):
        open_store(stores.store_of(foreign)).get_bytes(foreign, digest="")


def test_delete_removes_the_files_of_a_study_from_all_its_stores(console, database, tmp_path):
    study = arrange.new_study(database, name="mine")
    other = arrange.new_study(database, name="other")
    for name in "ab":
        console("set", "mine", f"checkpoints={tmp_path / name}")
        store_checkpoint(tmp_path / name, study)
        store_checkpoint(tmp_path / name, other)

    console("delete", "mine", "--yes")

    for name in "ab":
        assert [path.name for path in (tmp_path / name).iterdir()] == [other.uuid]


def test_quota_removes_checkpoints_from_a_store_that_is_newer_than_the_attempt_that_saves(
    create_study, storage_url, tmp_path
):
    options = {"num_trials": 2, "keep": "last=1, quota=300kB", "storage": storage_url}
    study = create_study("mine", None, checkpoints=str(tmp_path / "a"), **options)
    weights = os.urandom(80_000)
    first = study.ask()
    first.report({"loss": 1.0}, checkpoint={"weights": weights})
    study.set(checkpoints=str(tmp_path / "b"))
    with study.ask() as second:
        for _ in range(2):
            second.report({"loss": 1.0}, checkpoint={"weights": weights})

    for _ in range(2):  # the second save replaces the first checkpoint of the other trial
        first.report({"loss": 1.0}, checkpoint={"weights": weights})

    files = [path for name in "ab" for path in (tmp_path / name).rglob("*") if path.is_file()]
    kept = arrange.rows(study.database, "SELECT url FROM checkpoint WHERE removed_at IS NULL")
    assert sorted(path.as_uri() for path in files) == sorted(url for (url,) in kept)
    assert len(kept) == 3
    first.finish()


@pytest.fixture
def with_modules(create_study, storage_url, here):
    """A study that runs `a:train`, with `lr` as its parameter; the module `b` has a `train` too."""
    for name in "ab":
        (here / f"{name}.py").write_text("def train(config): return config['lr']\n")
    space = {"lr": studydb.uniform(0, 1)}
    return create_study(
        "mine", "a:train", space=space, num_trials=1, max_steps=9, storage=storage_url
    )


def test_set_replaces_the_trainable_by_another_function_or_by_a_command(
    console, with_modules, database
):
    ran = console("set", "mine", "trainable=b:train")
    replaced = load(database, "mine").trainable
    started = console("set", "mine", "--", "true", "--lr", "{lr}")
    command = load(database, "mine").trainable

    assert ran.lines == ["Study 'mine': attempts that start later run b:train."]
    assert started.lines == ["Study 'mine': attempts that start later run true --lr '{lr}'."]
    assert (replaced.kind, replaced.name) == ("import", "b:train")
    assert (command.kind, command.name) == ("command", "true --lr '{lr}'")
    for each in (replaced, command):
        check_trusted(each, with_modules.record.uuid, load_keyring())
    assert arrange.rows(database, "SELECT count(*) FROM trainable") == [(1,)]
    assert arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'revised'") == [(2,)]
    assert arrange.rows(database, "SELECT count(*) FROM signature") == [(1,)]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trainable=c:train"], 1, "Python finds no module 'c'"),
        (["trainable=a:tain"], 1, "Did you mean 'train'?"),
        (["--", "true", "{l}"], 2, "{l}"),
        (["--", "./nothing"], 1, "There is no program './nothing'"),
        (["trainable=b:train", "--", "true"], 2, "are both given"),
        (["trainable=b:train", "--report-regex", "x"], 2, "--report-regex is for commands"),
        ([], 2, "No setting is given."),
    ],
)
def test_set_with_wrong_code_or_contradicting_options_or_no_settings_is_refused(
    console, with_modules, words, code, message
):
    database = with_modules.database
    before = arrange.dump(database)

    ran = console("set", "mine", *words, code=code)

    assert message in ran.error
    assert arrange.dump(database) == before


def test_study_set_changes_the_trainable_and_the_checkpoint_store_in_one_call(
    with_modules, database, tmp_path
):
    with_modules.set(trainable=lambda config: 2 * config["lr"], checkpoints=tmp_path)

    assert with_modules.record.trainable.kind == "pickle"
    assert with_modules.record.checkpoints == tmp_path.as_uri()
    assert with_modules.record == load(database, "mine")


def test_study_set_without_settings_is_refused(with_modules):
    with pytest.raises(InvalidSpec, match="No setting is given"):
        with_modules.set()


def test_workdir_without_a_trainable_is_refused(with_modules, database, tmp_path):
    with pytest.raises(InvalidSpec, match="workdir='/nonexistent' says where workers search"):
        with_modules.set(checkpoints=tmp_path, workdir="/nonexistent")

    assert load(database, "mine").checkpoints is None


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        ("a:train", "`studydb set mine trainable=a:train`"),
        (["true", "{lr}"], "`studydb set mine -- true '{lr}'`"),
        (lambda config: config["lr"], "study.set(trainable=…)."),
    ],
)
def test_refusal_of_another_trainable_advises_set_and_does_not_advise_delete(
    create_study, storage_url, with_modules, code, cure
):
    with_modules.set(trainable="b:train")

    with pytest.raises(studydb.StudyExists) as error:
        create_study(
            "mine",
            code,
            space={"lr": studydb.uniform(0, 1)},
            num_trials=1,
            storage=storage_url,
            load_if_exists=True,
        )

    assert "exists with another trainable: b:train, not " in str(error.value)
    assert cure in str(error.value)
    assert "delete" not in str(error.value)


def test_set_of_a_trainable_is_refused_for_a_study_that_own_loops_run(console, database):
    arrange.new_study(database, name="mine")

    ran = console("set", "mine", "--", "true", code=1)

    assert "Study 'mine' has no trainable to replace" in ran.error
    assert arrange.rows(database, "SELECT count(*) FROM trainable") == [(0,)]


def test_retention_is_set_at_the_creation_and_later(console, create_study, storage_url, tmp_path):
    created = ("create", "mine", "--metric", "loss", "--mode", "min", "--keep", "last=3, best=1")
    console(*created, "--param", "x=uniform(0, 1)")
    # Without --keep, --if-not-exists accepts a study with any retention.
    console(*created[:-2], "--param", "x=uniform(0, 1)", "--if-not-exists")
    own = create_study(
        "own", storage=storage_url, keep=studydb.Keep(best=1), checkpoints=tmp_path / "saved"
    )
    trial = own.ask()
    for step, value in enumerate((0.1, 0.5, 0.6, 0.4), 1):
        trial.report({"loss": value}, checkpoint={"step": step})

    assert [each.step for each in own.trial(0).checkpoints] == [1, 3, 4]
    assert len(files_below(tmp_path / "saved")) == 3
    assert "last=3, best=1" in console("show", "mine").out
    ran = console("set", "mine", "keep=every=10")
    assert ran.lines == [
        "Study 'mine': attempts that start later keep checkpoints as keep='last=1, every=10' says."
    ]
    assert console("show", "mine", "--format", "json").json["keep"]["every"] == 10
    own.set(keep="last=2")
    assert own.record.keep == studydb.Keep(last=2)
    assert "Keep.best is -1" in console("set", "mine", "keep=best=-1", code=2).error


VALID = {
    "checkpoints": "/tmp/elsewhere",
    "trainable": "b:train",
    "keep": "last=3",
    "resources": "gpus=1",
    "max_steps": "900",
}
REFUSED = {
    "checkpoints": ("ftp://host", UsageError, 2),
    "trainable": ("c:train", TrainableError, 1),
    "keep": ("best=-1", InvalidSpec, 2),
    "resources": ("gpus=x", InvalidSpec, 2),
    "max_steps": ("0", InvalidSpec, 2),
    "time_limit_s": ("1h", NotAllowed, 1),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_set_changes_nothing_if_one_setting_is_refused(console, with_modules, database, refused):
    value, error, code = REFUSED[refused]
    settings = VALID | {refused: value}
    before, record = arrange.dump(database), with_modules.record

    console("set", "mine", *(f"{key}={text}" for key, text in settings.items()), code=code)
    with pytest.raises(error):
        with_modules.set(**settings)

    assert arrange.dump(database) == before
    assert with_modules.record == record
