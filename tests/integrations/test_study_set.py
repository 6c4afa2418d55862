"""`studydb set` changes where new checkpoints go; older checkpoints stay in their stores."""

from uuid import uuid4

import pytest
from harness import arrange

from studydb.artifacts import DirectoryStore, Place, open_store
from studydb.domain.errors import CheckpointError
from studydb.operations.create import load
from studydb.operations.relocate import located

TRIAL, CHECKPOINT = str(uuid4()), str(uuid4())


def store_checkpoint(root, study):
    """Store a checkpoint's bytes in a directory, and return the URL."""
    return DirectoryStore(root).put_bytes(Place(study.uuid, TRIAL, 1, 1, CHECKPOINT), b"abc").url


def test_set_keeps_the_list_of_former_checkpoint_stores(console, database, tmp_path):
    study = arrange.new_study(database, name="mine")

    ran = console("set", "mine", f"checkpoints={tmp_path}/a")
    console("set", "mine", "checkpoints=inline:")
    console("set", "mine", f"checkpoints={tmp_path}/b")
    console("set", "mine", f"checkpoints={tmp_path}/a")

    a, b = ((tmp_path / name).as_uri() for name in "ab")
    assert ran.lines == [f"Study 'mine': attempts that start later save checkpoints to {a}."]
    assert load(database, "mine").checkpoints == a
    assert located(database, study).former_checkpoints == (b, "inline:", None)
    assert load(database, "mine").guard  # the other settings stay
    events = arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'checkpoints set'")
    assert events == [(4,)]
    assert console("show", "mine", "--format", "json").json["checkpoints"] == a


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("foo=1", "'foo' cannot be set. Settings: checkpoints."),
        ("checkpoint=/x", "Did you mean 'checkpoints'?"),
        ("checkpoints", "'checkpoints' has no value; write checkpoints=VALUE."),
        ("checkpoints=s3://bucket", "Checkpoints cannot go to 's3://bucket'."),
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
    stores = database.locations.checkpoint_stores(located(database, study))
    a, b = ((tmp_path / name).as_uri() for name in "ab")
    (tmp_path / "b").mkdir()
    foreign = store_checkpoint(tmp_path / "foreign", study)

    assert stores.current == b
    assert stores.store_of(store_checkpoint(tmp_path / "a", study)) == a
    # `store_of` compares only the last parts of the URL. Directory `a` has a file with these parts.
    assert stores.store_of(foreign) == a
    DirectoryStore(tmp_path / "a").delete(foreign)
    with pytest.raises(CheckpointError, match="cannot be read"):
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
