"""A host's cache of remote checkpoints: bounded, shared, and verified at each restore."""

import errno
import os
import threading
import uuid
from pathlib import Path

import pytest
from msgspec import structs

from studydb.artifacts import Stores, digest_of, open_store, restore_cache, tree
from studydb.artifacts.checkpoint_files import Saver, fetch
from studydb.artifacts.checkpoint_records import Restore
from studydb.artifacts.restore_cache import RestoreCache, cache_fault, open_cache
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.errors import CheckpointError, UsageError
from studydb.settings import DEFAULT_CACHE_BYTES, cache_size_bytes

STUDY, TRIAL = str(uuid.uuid4()), str(uuid.uuid4())


@pytest.fixture(autouse=True)
def no_bytes_kept_free(monkeypatch):
    monkeypatch.setattr(restore_cache, "LEAST_FREE_BYTES", 0)


@pytest.fixture
def cache(tmp_path):
    return RestoreCache(tmp_path / "cache", 10_000)


@pytest.fixture
def remote():
    return f"memory://{uuid.uuid4()}/prefix"


def saved(store, what, *, cache=None, step=1):
    """Save bytes or a directory; return the record by which an attempt restores the checkpoint."""
    open_store(store).add_study(STUDY)
    saver = Saver(store, study_uuid=STUDY, trial_uuid=TRIAL, attempt=1, cache=cache)
    row = saver.save(what, step=step, upload=saver.begin(step=step))
    return Restore(
        row.kind, row.url, row.digest, step, size_bytes=row.size_bytes, stores=Stores(store)
    )


@pytest.fixture(params=["dict", "directory"])
def what(request, tmp_path):
    """What a checkpoint holds: 3,000 bytes, or a directory with one file of 3,000 bytes."""
    if request.param == "dict":
        return os.urandom(3_000)
    (tmp_path / "model" / "layers").mkdir(parents=True)
    (tmp_path / "model" / "layers" / "0").write_bytes(os.urandom(3_000))
    return tmp_path / "model"


@pytest.mark.parametrize("named", ["~nobody-here/x", "a file", "below a file", "not writable"])
def test_folder_that_cannot_be_used_is_no_cache(tmp_path, monkeypatch, named):
    (tmp_path / "file").write_text("x")
    places = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "x"}
    monkeypatch.setenv("STUDYDB_CACHE_DIR", str(places.get(named, named)))
    if named == "not writable":  # the test may run as root, who may write everywhere
        monkeypatch.setattr(os, "access", lambda *_: False)

    fault = cache_fault()

    assert fault is not None
    assert "which cannot hold the cache of checkpoints" in fault
    assert "Name a directory that you can write" in fault
    assert open_cache(10_000) is None


def test_folder_that_does_not_exist_yet_is_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDYDB_CACHE_DIR", str(tmp_path / "a" / "b"))

    assert cache_fault() is None
    assert open_cache(10_000).folder == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []


def content(what):
    return what if isinstance(what, bytes) else (what / "layers" / "0").read_bytes()


def restored(restore, tmp_path, cache):
    found = fetch(restore, target=tmp_path / f"target-{uuid.uuid4()}", cache=cache)
    return found.data if found.data is not None else (found.path / "layers" / "0").read_bytes()


def entries(cache):
    return sorted(path.name for path in cache.folder.iterdir())


def lose(restore):
    open_store(restore.stores.current).delete(restore.url)


def test_second_restore_reads_no_store(what, cache, remote, tmp_path):
    restore = saved(remote, what)

    first = restored(restore, tmp_path, cache)
    lose(restore)

    assert first == restored(restore, tmp_path, cache) == content(what)
    assert [name[-5:] for name in entries(cache)] == ["-3000"]


def test_save_fills_the_cache(what, cache, remote, tmp_path):
    restore = saved(remote, what, cache=cache)
    lose(restore)

    assert restored(restore, tmp_path, cache) == content(what)


def test_checkpoint_in_a_store_that_is_a_directory_is_not_copied_to_the_cache(
    what, cache, tmp_path
):
    restore = saved((tmp_path / "store").as_uri(), what, cache=cache)

    assert restored(restore, tmp_path, cache) == content(what)
    assert not cache.folder.exists()


def test_changed_entry_is_not_restored_and_is_replaced(what, cache, remote, tmp_path):
    restore = saved(remote, what, cache=cache)
    (entry,) = cache.folder.iterdir()
    file = entry if entry.is_file() else entry / "layers" / "0"
    file.write_bytes(b"x" * 3_000)

    assert restored(restore, tmp_path, cache) == content(what)
    assert restored(restore, tmp_path, cache) == content(what)
    assert content(what) == (entry if entry.is_file() else entry / "layers" / "0").read_bytes()


def test_changed_entry_of_a_lost_object_is_never_restored(what, cache, remote, tmp_path):
    restore = saved(remote, what, cache=cache)
    (entry,) = cache.folder.iterdir()
    (entry if entry.is_file() else entry / "layers" / "0").write_bytes(b"x" * 3_000)
    lose(restore)

    with pytest.raises(CheckpointError, match="is missing"):
        restored(restore, tmp_path, cache)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_entry_that_is_no_file_is_passed_over(kind, cache, remote, tmp_path):
    restore = saved(remote, b"x" * 3_000, cache=cache)
    (entry,) = cache.folder.iterdir()
    entry.unlink()
    if kind == "fifo":
        os.mkfifo(entry)
    elif kind == "link":
        entry.symlink_to("/dev/zero")
    else:
        entry.mkdir()

    assert restored(restore, tmp_path, cache) == b"x" * 3_000


def test_entry_used_least_recently_is_removed_first(cache, remote, tmp_path):
    first, second, third = (saved(remote, bytes([n]) * 3_000, cache=cache) for n in range(3))
    for seconds, restore in enumerate((second, third)):
        os.utime(cache.folder / f"{restore.digest}-3000", (seconds, seconds))
    restored(first, tmp_path, cache)

    fourth = saved(remote, b"4" * 3_000, cache=cache)

    assert entries(cache) == sorted(f"{one.digest}-3000" for one in (first, third, fourth))


def test_checkpoint_larger_than_the_limit_is_not_kept(cache, remote, tmp_path):
    small = saved(remote, b"s" * 3_000, cache=cache)
    large = saved(remote, b"l" * 10_001, cache=cache)

    assert restored(large, tmp_path, cache) == b"l" * 10_001
    assert entries(cache) == [f"{small.digest}-3000"]


def test_checkpoint_whose_entry_is_evicted_while_it_is_copied_is_read_from_the_store(
    cache, remote, tmp_path, monkeypatch
):
    source = tmp_path / "model"
    (source / "layers").mkdir(parents=True)
    for name in ("0", "1"):
        (source / "layers" / name).write_bytes(name.encode() * 3_000)
    restore = saved(remote, source, cache=cache)
    copy_file = tree._copy_file

    def evicting(path, target, *, durable):
        copied = copy_file(path, target, durable=durable)
        if path.is_relative_to(cache.folder):
            cache._shrink_to(0)
        return copied

    monkeypatch.setattr(tree, "_copy_file", evicting)

    assert restored(restore, tmp_path, cache) == b"0" * 3_000


def test_full_disk_leaves_the_cache_empty_and_fails_no_restore(
    what, cache, remote, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    restore = saved(remote, what)
    monkeypatch.setattr(Path, "write_bytes", full)
    with monkeypatch.context() as patch:
        patch.setattr(restore_cache.tree, "copy", full)
        cache.add_directory("0" * 64, 3_000, tmp_path, url="")
    cache.add_bytes(restore.digest, b"x" * 3_000)

    assert entries(cache) == []
    assert len(restored(restore, tmp_path, cache)) == 3_000


def test_cache_leaves_the_last_gibibyte_of_the_disk_free(cache, remote, monkeypatch):
    monkeypatch.setattr(restore_cache, "LEAST_FREE_BYTES", 1 << 62)

    saved(remote, b"x" * 3_000, cache=cache)

    assert entries(cache) == []


def test_cache_folder_that_cannot_be_written_fails_neither_a_save_nor_a_restore(
    what, remote, tmp_path
):
    (tmp_path / "file").write_text("")
    cache = RestoreCache(tmp_path / "file" / "cache", 10_000)

    assert restored(saved(remote, what, cache=cache), tmp_path, cache) == content(what)


def test_directory_that_has_changed_since_its_upload_is_not_kept(cache, tmp_path):
    (tmp_path / "model").mkdir()

    cache.add_directory("0" * 64, 0, tmp_path / "model", url="")

    assert entries(cache) == []


def test_leftovers_of_killed_processes_are_removed_after_a_day(cache, remote):
    saved(remote, b"a" * 10, cache=cache)
    for name, age_s in (("old", 2 * restore_cache.STALE_S), ("new", 0)):
        path = cache.folder / f".{'0' * 64}-5.{name}"
        path.write_bytes(b"x")
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)

    saved(remote, b"b" * 10, cache=cache)

    assert [name[-3:] for name in entries(cache) if name.startswith(".")] == ["new"]


def test_other_files_of_the_folder_are_never_removed(cache, remote):
    others = [cache.folder / name for name in (".bashrc", ".ssh/id", "notes", f".{'0' * 64}")]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    for path in cache.folder.iterdir():
        os.utime(path, (0, 0))

    saved(remote, b"a" * 9_000, cache=cache)
    saved(remote, b"b" * 9_000, cache=cache)

    assert [path.read_text() for path in others] == ["mine"] * 4


def test_number_of_entries_is_bounded(cache, remote, monkeypatch):
    monkeypatch.setattr(restore_cache, "MOST_ENTRIES", 2)
    for n in range(3):
        newest = saved(remote, bytes([n]), cache=cache)
        os.utime(cache.folder / f"{newest.digest}-1", (n, n))

    assert len(entries(cache)) == 2
    assert f"{newest.digest}-1" in entries(cache)


def test_directory_is_restored_with_its_own_empty_directories(cache, remote, tmp_path):
    """The two directories have the same digest, because a digest covers only files."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "weights").write_bytes(b"w")
    (tmp_path / "with" / "logs").mkdir(parents=True)
    (tmp_path / "with" / "weights").write_bytes(b"w")
    restores = [saved(remote, tmp_path / name, cache=cache) for name in ("with", "plain", "with")]

    found = [
        fetch(one, target=tmp_path / f"target{n}", cache=cache).path
        for n, one in enumerate(restores)
    ]

    assert restores[0].digest == restores[1].digest
    assert [(path / "logs").is_dir() for path in found] == [True, False, True]


def test_directory_whose_size_differs_from_its_checkpoints_row_is_not_kept(cache, remote, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"x" * 3_000)
    restore = saved(remote, tmp_path / "model")

    fetch(structs.replace(restore, size_bytes=0), target=tmp_path / "target", cache=cache)

    assert entries(cache) == []


def test_threads_that_share_a_cache_restore_right_bytes_within_the_limit(tmp_path, remote):
    caches = [RestoreCache(tmp_path / "cache", 10_000) for _ in range(4)]
    wanted = [saved(remote, bytes([n]) * 3_000) for n in range(6)]
    wrong = []

    def work(cache, seed):
        for turn in range(40):
            restore = wanted[(turn * (seed + 1) + seed) % len(wanted)]
            if digest_of(fetch(restore, target=Path(), cache=cache).data) != restore.digest:
                wrong.append(restore)

    threads = [threading.Thread(target=work, args=(one, n)) for n, one in enumerate(caches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    caches[0]._shrink_to(10_000)
    assert wrong == []
    assert len(entries(caches[0])) <= 3


def test_checkpoint_whose_row_has_another_size_is_read_from_the_store(cache, remote, tmp_path):
    restore = saved(remote, b"x" * 3_000, cache=cache)

    assert restored(structs.replace(restore, size_bytes=7), tmp_path, cache) == b"x" * 3_000


def test_dict_is_not_restored_from_the_entry_of_a_directory(cache, remote, tmp_path):
    (tmp_path / "model").mkdir()
    directory = saved(remote, tmp_path / "model", cache=cache)
    lose(directory)

    with pytest.raises(CheckpointError):
        fetch(structs.replace(directory, kind=CheckpointKind.DICT), target=Path(), cache=cache)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("", DEFAULT_CACHE_BYTES), ("10GB", 10 << 30), ("5M", 5 << 20)]
)
def test_size_of_the_cache_is_read_from_the_environment(text, size_bytes):
    assert cache_size_bytes({"STUDYDB_CACHE_SIZE": text}) == size_bytes


def test_size_that_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="STUDYDB_CACHE_SIZE is 'much'"):
        cache_size_bytes({"STUDYDB_CACHE_SIZE": "much"})


def test_cache_size_zero_opens_no_cache(monkeypatch):
    monkeypatch.setenv("STUDYDB_CACHE_DIR", "/nowhere")

    assert open_cache(0) is None
    assert open_cache(1).folder == Path("/nowhere")
