"""Directories as checkpoints are copied whole or not at all, with their times, and without links."""

import os
from types import SimpleNamespace
from uuid import uuid4

import pytest

from studydb.artifacts import DirectoryStore, Place
from studydb.artifacts import tree as trees
from studydb.artifacts.restore_cache import RestoreCache
from studydb.domain.errors import CheckpointError


def stored_in(folder, source):
    """Store a directory in a new store; return the store and what it has stored."""
    store, study = DirectoryStore(folder), str(uuid4())
    store.add_study(study)
    place = Place(study, str(uuid4()), 1, 3, str(uuid4()))
    return store, store.put_directory(place, source)


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    (directory / "layers").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(b"weights")
    (directory / "layers" / "0.bin").write_bytes(b"zero")
    return directory


def test_save_in_a_directory_that_is_moved_meanwhile_makes_no_folder_in_the_old_place(
    source, tmp_path, monkeypatch
):
    """Otherwise the running attempt would go on in the old place."""
    store, _ = stored_in(tmp_path / "store", source)
    study = next(store.root.iterdir()).name
    check = DirectoryStore.check_study

    def check_and_move(self, study_uuid):
        check(self, study_uuid)
        self.root.rename(tmp_path / "moved")

    monkeypatch.setattr(DirectoryStore, "check_study", check_and_move)
    with pytest.raises(CheckpointError, match="could not be written"):
        store.put_bytes(Place(study, str(uuid4()), 1, 3, str(uuid4())), b"bytes")

    assert not store.root.exists()


@pytest.mark.parametrize("is_cached", [False, True])
def test_copy_to_a_directory_that_another_process_is_filling_removes_nothing(
    source, tmp_path, is_cached
):
    store, stored = stored_in(tmp_path / "store", source)
    target = tmp_path / "model"
    target.mkdir()
    (target / "of another process").touch()

    if is_cached:
        cache = RestoreCache(tmp_path / "cache", 1 << 30)
        restore = SimpleNamespace(
            url=stored.url, digest=stored.digest, size_bytes=stored.size_bytes
        )
        cache.add_directory(stored.digest, stored.size_bytes, source, url=stored.url)
        assert cache.copy_directory(restore, tmp_path / "free")
        assert not cache.copy_directory(restore, target)
    else:
        with pytest.raises(FileExistsError):
            store.get_directory(stored.url, digest=stored.digest, target=target)

    assert [path.name for path in target.iterdir()] == ["of another process"]


def test_copy_that_ctrl_c_interrupts_leaves_no_target(source, tmp_path, monkeypatch):
    store, stored = stored_in(tmp_path / "store", source)

    def interrupt(*_, **__):
        assert (tmp_path / "copy").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(trees, "_copy_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_files_of_a_directory_keep_their_times_of_modification(source, tmp_path):
    os.utime(source / "weights.bin", ns=(1, 1_000_000_001))
    trees.take_copy(source, tmp_path / "taken")
    store, stored = stored_in(tmp_path / "store", tmp_path / "taken")

    again = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert (again / "weights.bin").stat().st_mtime_ns == 1_000_000_001


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_directory_with_symbolic_or_hard_links_has_links(source, tmp_path, kind):
    assert not trees.has_links(source)

    link = source / "layers" / "link"
    if kind == "hard":
        (tmp_path / "trained in place").write_bytes(b"")
        link.hardlink_to(tmp_path / "trained in place")
    else:
        link.symlink_to("0.bin")

    assert trees.has_links(source)
