"""`Stores.store_of`: which of a study's stores holds a checkpoint, or may hold it."""

import shutil
import uuid
from pathlib import Path

import pytest

from studydb.artifacts import DirectoryStore, Place, Stores
from studydb.domain.errors import CheckpointError

OWN, OTHER, TRIAL = (str(uuid.uuid4()) for _ in range(3))


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Make the URL of the directory with a name, relative to a new working directory."""
    monkeypatch.chdir(tmp_path)
    return lambda name: Path(name).absolute().as_uri()


def save(name, study=OWN):
    """Save a checkpoint in a directory; return its URL."""
    directory = DirectoryStore(Path(name))
    directory.add_study(study)
    return directory.put_bytes(Place(study, TRIAL, 1, 1, str(uuid.uuid4())), b"state").url


def remove(url):
    Path(url.removeprefix("file://")).unlink()


def move(name, target):
    """Move the files of a directory, which keeps the empty folder of the study."""
    shutil.copytree(name, target)
    shutil.rmtree(Path(name) / OWN / TRIAL)


def test_store_whose_url_is_the_start_of_the_objects_url_is_found(store):
    stores = Stores(store("b"), (store("a"),), OWN)
    first, second = save("a"), save("b")

    assert [stores.store_of(url) for url in (first, second)] == [store("a"), store("b")]


def test_object_whose_directory_was_moved_is_found_in_another_store(store):
    url = save("a")
    move("a", "b")

    assert Stores(store("b"), (store("a"),), OWN).store_of(url) == store("b")


def test_object_is_not_missing_while_its_new_store_cannot_be_read(store):
    url = save("a")
    move("a", "b")
    Path("b").rename("unmounted")

    for timeline in ([store("b"), store("a")], [store("a"), store("b"), store("a")]):
        with pytest.raises(OSError, match=r"No store that this host can read has .*/b does not"):
            Stores(timeline[0], tuple(timeline[1:]), OWN).store_of(url)


def test_object_is_missing_if_only_older_stores_cannot_be_read(store):
    """A person would name the place to which the files were moved after the first place."""
    url = save("b")
    remove(url)
    stores = Stores(store("b"), (store("unused"), "inline:", store("never mounted")), OWN)

    assert stores.store_of(url) == store("b")


def test_all_stores_that_cannot_be_read_are_named(store):
    url = save("a")
    remove(url)

    with pytest.raises(OSError, match=r"/b does not exist .*/c does not exist"):
        Stores(store("b"), (store("c"), store("a")), OWN).store_of(url)


def test_object_with_the_url_of_no_store_may_be_in_each_store(store):
    """For example, a person has copied the database and the directory."""
    url = save("original")
    save("a")

    with pytest.raises(OSError, match="/copy does not exist"):
        Stores(store("a"), (store("copy"),), OWN).store_of(url)


def test_own_objects_are_in_own_stores_and_those_of_another_study_in_its_stores(store):
    own, others = save("own"), save("theirs", OTHER)
    sources = {OTHER: (store("theirs"), store("also theirs"))}
    stores = Stores(store("own"), (store("unused"),), OWN, sources)

    assert [stores.store_of(url) for url in (own, others)] == [store("own"), store("theirs")]
    remove(own)
    remove(others)
    assert [stores.store_of(url) for url in (own, others)] == [store("own"), store("theirs")]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://[", f"file:///a/{OTHER}/{TRIAL}/1/1-{OTHER}"]
)
def test_url_that_names_no_object_of_the_study_is_refused(store, url):
    save("a")

    with pytest.raises(CheckpointError, match=r"row .* changed"):
        Stores(store("a"), (store("b"),), OWN).store_of(url)


def test_object_in_the_database_needs_no_store(store):
    assert Stores("inline:").store_of("inline:") == "inline:"
    with pytest.raises(CheckpointError, match="is in no store of the study"):
        Stores("inline:", study_uuid=OWN).store_of(save("a"))
