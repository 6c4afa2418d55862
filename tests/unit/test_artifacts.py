"""How checkpoints are stored (whole or not at all), read, checked, deleted and packed."""

import errno
import io
import multiprocessing
import os
import resource
import shutil
import stat
import tarfile
import uuid
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from msgspec import structs

from studydb.artifacts import (
    DirectoryStore,
    Place,
    check_inline_size,
    digest_of,
    open_store,
    pack_directory,
    scan,
    unpack_directory,
)
from studydb.artifacts import tree as trees
from studydb.artifacts.directory import discard
from studydb.domain.errors import CheckpointError, UsageError

STUDY, TRIAL = "8f0e6d5c-2a51-4c9e-9d57-3c1f0a6b7e21", "1b7c4f9a-6d3e-4b0a-8f25-90e1d2c3b4a5"


def place(step=3, attempt=1):
    return Place(STUDY, TRIAL, attempt, step, str(uuid.uuid4()))


@pytest.fixture
def store(tmp_path):
    directory = DirectoryStore(tmp_path / "store")
    directory.add_study(STUDY)
    return directory


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    (directory / "layers" / "empty").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(os.urandom(3 << 20))
    (directory / "layers" / "0.bin").write_bytes(b"zero")
    (directory / "läyer name").write_bytes(b"")
    return directory


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def paths_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# checkpoints as bytes


def test_path_of_stored_bytes_names_their_study_trial_and_attempt(store):
    where = place(step=7, attempt=2)

    stored = store.put_bytes(where, b"state")

    path = store.root / STUDY / TRIAL / "2" / f"7-{where.checkpoint_uuid}"
    assert stored.url == path.as_uri()
    assert (stored.digest, stored.size_bytes) == (digest_of(b"state"), 5)
    assert store.get_bytes(stored.url, digest=stored.digest) == b"state"
    assert list(path.parent.iterdir()) == [path]


def test_changed_bytes_are_refused_as_damaged(store):
    stored = store.put_bytes(place(), b"state")
    next(store.root.rglob("3-*")).write_bytes(b"stave")

    with pytest.raises(CheckpointError, match="is damaged"):
        store.get_bytes(stored.url, digest=stored.digest)


def test_delete_removes_one_checkpoint_and_can_be_repeated(store, source):
    kept = store.put_bytes(place(), b"kept")
    gone = [store.put_bytes(place(), b"gone"), store.put_directory(place(), source)]

    for stored in [*gone, *gone]:
        store.delete(stored.url)

    assert [store.exists(stored.url) for stored in [kept, *gone]] == [True, False, False]


def test_delete_removes_empty_directories_of_attempts_and_trials(store):
    first, second = store.put_bytes(place(), b"1"), store.put_bytes(place(attempt=2), b"2")

    store.delete(first.url)
    assert paths_below(store.root)[-1].startswith(f"{STUDY}/{TRIAL}/2/")
    store.delete(second.url)

    assert paths_below(store.root) == [STUDY]


def test_delete_on_a_host_without_the_directory_of_the_store_says_to_mount_it(store):
    stored = store.put_bytes(place(), b"kept")
    unmounted = store.root.rename(store.root.with_name("elsewhere"))

    with pytest.raises(CheckpointError, match=r"does not exist on this host\. Mount it"):
        store.delete(stored.url)

    unmounted.rename(store.root)
    assert store.get_bytes(stored.url, digest=stored.digest) == b"kept"


def test_delete_study_keeps_the_checkpoints_of_other_studies(store):
    other_study = str(uuid.uuid4())
    store.add_study(other_study)
    other = store.put_bytes(Place(other_study, TRIAL, 1, 1, str(uuid.uuid4())), b"x")
    store.put_bytes(place(), b"y")

    store.delete_study(STUDY)
    store.delete_study(STUDY)

    assert store.exists(other.url)
    assert paths_below(store.root / STUDY) == []
    store.remove_folder(STUDY)
    assert not (store.root / STUDY).exists()


@pytest.mark.parametrize("study_uuid", ["", ".", "..", "/", "../other", "-" * 36, f"{STUDY}\n"])
def test_delete_study_refuses_a_text_that_is_not_a_uuid(store, study_uuid):
    with pytest.raises(CheckpointError, match="is not a study's UUID"):
        store.delete_study(study_uuid)


@pytest.mark.parametrize("field", ["study_uuid", "trial_uuid", "checkpoint_uuid"])
@pytest.mark.parametrize("text", ["..", "/etc", "../../home", f"../{TRIAL}"])
def test_put_refuses_a_place_with_a_text_that_is_not_a_uuid(store, field, text):
    with pytest.raises(CheckpointError, match="'s UUID: a program other"):
        store.put_bytes(structs.replace(place(), **{field: text}), b"x")

    assert paths_below(store.root) == [STUDY]


@pytest.mark.parametrize("levels_up", [0, 1, 2])
def test_link_to_a_directory_outside_the_store_is_refused(store, tmp_path, levels_up):
    stored = store.put_bytes(place(), b"state")
    outside = tmp_path / "outside"
    path = Path(unquote(urlsplit(stored.url).path))
    replaced = path.parents[levels_up]
    replaced.rename(outside)
    replaced.symlink_to(outside)

    with pytest.raises(CheckpointError, match="leads out of"):
        store.delete(stored.url)
    # An OSError is a fault of this host, so the checkpoint is not marked as corrupt.
    with pytest.raises(OSError, match="leads out of"):
        store.get_bytes(stored.url, digest=stored.digest)
    with pytest.raises(OSError, match="leads out of"):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert [name for name in paths_below(outside) if name.endswith(path.name)]


def test_study_whose_folder_is_a_link_is_not_deleted(store, tmp_path):
    """The target may be another disk with the study's files, or a folder with other files."""
    outside = tmp_path / "thesis"
    (outside / "chapters").mkdir(parents=True)
    (store.root / STUDY).rmdir()
    (store.root / STUDY).symlink_to(outside)

    with pytest.raises(CheckpointError, match=r"is a link to .*/thesis, and studydb deletes no"):
        store.delete_study(STUDY)

    assert paths_below(store.root) == [STUDY]
    assert paths_below(outside) == ["chapters"]


def test_moved_store_reads_checkpoints_by_their_old_urls(store, tmp_path):
    stored = store.put_bytes(place(), b"state")
    store.root.rename(tmp_path / "moved")

    moved = DirectoryStore(tmp_path / "moved")

    assert moved.get_bytes(stored.url, digest=stored.digest) == b"state"


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "", "inline:", "http://[", "a\0b"),
        f"file:///a/{STUDY}/{TRIAL}/1/..",
        f"file:///a/{STUDY}/{TRIAL}/../3-{STUDY}",
        f"file:///a/{STUDY}/{TRIAL}/1/3-{STUDY}%2F..%2F..",
    ],
)
def test_url_that_names_no_checkpoint_of_the_store_is_refused(store, url):
    for access in (store.delete, store.exists, lambda url: store.get_bytes(url, digest="")):
        with pytest.raises(CheckpointError, match="names no checkpoint"):
            access(url)


# checkpoints as directories


def test_each_read_of_a_directory_gives_a_new_copy(store, source, tmp_path):
    stored = store.put_directory(place(), source)

    copy = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    (copy / "weights.bin").write_bytes(b"trained on")
    again = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "again")

    assert contents(again) == contents(source)
    assert (again / "layers" / "empty").is_dir()
    assert stored.size_bytes == (3 << 20) + 4


def test_digest_of_a_directory_covers_only_names_and_contents(store, source, tmp_path):
    first = store.put_directory(place(), source)
    (source / "weights.bin").chmod(0o700)
    os.utime(source / "weights.bin", (1, 1))
    same = store.put_directory(place(), source)
    (source / "weights.bin").rename(source / "weights2.bin")
    renamed = store.put_directory(place(), source)

    assert first.digest == same.digest
    assert first.digest != renamed.digest


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"one!"),
        lambda file: file.with_name("1.bin").write_bytes(b""),
        lambda file: file.unlink(),
        lambda file: file.rename(file.with_name("00.bin")),
    ],
    ids=["changed", "added", "removed", "renamed"],
)
def test_damaged_directory_is_refused(store, source, tmp_path, damage):
    stored = store.put_directory(place(), source)
    damage(next(store.root.rglob("0.bin")))

    with pytest.raises(CheckpointError, match="is damaged"):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_reading_a_deleted_checkpoint_raises_checkpoint_error(store, source, tmp_path):
    file, directory = store.put_bytes(place(), b"state"), store.put_directory(place(), source)
    for stored in (file, directory):
        store.delete(stored.url)

    with pytest.raises(CheckpointError, match="No such file"):
        store.get_bytes(file.url, digest=file.digest)
    with pytest.raises(CheckpointError, match="is missing"):
        store.get_directory(directory.url, digest=directory.digest, target=tmp_path / "copy")


def test_links_within_a_directory_are_stored_as_copies_of_their_targets(store, source, tmp_path):
    (source / "latest.bin").symlink_to("weights.bin")
    (source / "newest").symlink_to(source / "layers")

    stored = store.put_directory(place(), source)
    copy = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert not any(path.is_symlink() for path in copy.rglob("*"))
    assert (copy / "latest.bin").read_bytes() == (source / "weights.bin").read_bytes()
    assert (copy / "newest" / "0.bin").read_bytes() == b"zero"


def test_link_to_a_directory_can_be_given_instead_of_the_directory(store, source, tmp_path):
    (tmp_path / "link").symlink_to(source)

    assert store.put_directory(place(), tmp_path / "link").size_bytes > 0


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere", "has no existing target"),
        ("../outside", "leads out of the directory"),
        ("/etc/hostname", "leads out of the directory"),
        (".", "leads to a directory that contains it"),
        ("layers/..", "leads to a directory that contains it"),
        ("link", "has no existing target"),
    ],
)
def test_link_to_nothing_or_to_its_own_parent_or_out_of_the_directory_is_refused(
    store, source, tmp_path, target, complaint
):
    (tmp_path / "outside").write_text("secret")
    (source / "link").symlink_to(target)

    with pytest.raises(CheckpointError, match=complaint):
        store.put_directory(place(), source)

    assert paths_below(store.root) == [STUDY]


def test_discard_of_a_link_removes_the_link_and_keeps_its_target(source, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(source)
    before = paths_below(source)

    discard(link)

    assert not link.is_symlink()
    assert paths_below(source) == before


def test_pipe_in_a_directory_is_refused(store, source):
    os.mkfifo(source / "pipe")

    with pytest.raises(CheckpointError, match="neither a file nor a directory"):
        store.put_directory(place(), source)


def test_put_directory_refuses_a_file_and_a_path_that_does_not_exist(store, source):
    with pytest.raises(CheckpointError, match="is a file; give a directory"):
        store.put_directory(place(), source / "weights.bin")
    with pytest.raises(CheckpointError, match="does not exist"):
        store.put_directory(place(), source / "nothing")
    with pytest.raises(CheckpointError, match=r"/\\ud800' does not exist"):
        store.put_directory(place(), source / "\ud800")
    with pytest.raises(
        CheckpointError, match=r"cannot be read|does not exist"
    ):  # by Python version
        store.put_directory(place(), source / ("x" * 5000))


def test_directory_with_too_many_files_is_refused(source, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILES", 3)

    with pytest.raises(CheckpointError, match="more than 3 files"):
        scan(source)


# failures


def put_with_a_file_size_limit(store, source, results):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    for put in (
        lambda: store.put_bytes(place(), bytes(2 << 20)),
        lambda: store.put_directory(place(), source),
    ):
        try:
            put()
            results.put("stored")
        except CheckpointError as failure:
            results.put(str(failure))


def test_put_that_cannot_write_raises_an_error_with_the_cause_and_leaves_no_files(store, source):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=put_with_a_file_size_limit, args=(store, source, results))

    process.start()
    failures = [results.get(timeout=30) for _ in range(2)]
    process.join()

    assert all("File too large" in failure for failure in failures)
    assert paths_below(store.root) == sorted([STUDY, f"{STUDY}/{TRIAL}", f"{STUDY}/{TRIAL}/1"])


def test_store_whose_path_is_a_file_names_the_cause(source):
    store = DirectoryStore(source / "weights.bin")

    with pytest.raises(CheckpointError, match="Not a directory"):
        store.add_study(STUDY)
    with pytest.raises(CheckpointError, match="is not a directory on this host"):
        store.put_bytes(place(), b"")


def test_files_are_synced_before_their_directory_gets_its_final_name(store, source, monkeypatch):
    synced, synced_before_rename = [], []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def recorded_rename(path, to):
        synced_before_rename.extend(synced)
        synced.clear()
        rename(path, to)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)

    stored = store.put_directory(place(), source)

    names = {Path(path).name for path in synced_before_rename}
    assert names > {"weights.bin", "0.bin", "läyer name", STUDY, TRIAL}
    assert synced == [str(Path(unquote(urlsplit(stored.url).path)).parent)]


def test_failed_sync_of_a_directory_is_an_error_unless_the_file_system_cannot_sync_directories(
    store, monkeypatch
):
    put = partial(store.put_bytes, place(), b"weights")
    monkeypatch.setattr(os, "fsync", failing_for_directories(errno.EINVAL))
    put()
    monkeypatch.setattr(os, "fsync", failing_for_directories(errno.EIO))
    with pytest.raises(CheckpointError, match="Input/output error"):
        put()


def failing_for_directories(number):
    def failing(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    return failing


# stores that are not mounted, errors while reading, and interrupted or concurrent removals


def test_host_without_the_folder_of_a_study_writes_nothing_and_reports_no_damage(store, tmp_path):
    stored = store.put_bytes(place(), b"state")
    (store.root / STUDY).rename(tmp_path / "unmounted")

    with pytest.raises(CheckpointError, match="Mount it"):
        store.put_bytes(place(), b"later state")
    with pytest.raises(CheckpointError, match="Mount it"):
        store.delete(stored.url)
    with pytest.raises(FileNotFoundError, match="Mount it"):
        store.get_bytes(stored.url, digest=stored.digest)
    with pytest.raises(FileNotFoundError, match="Mount it"):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    assert paths_below(store.root) == []


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE])
def test_read_error_of_this_host_is_not_reported_as_damage(
    store, source, tmp_path, monkeypatch, number
):
    dict_, directory = store.put_bytes(place(), b"state"), store.put_directory(place(), source)
    opening = io.open

    def failing(file, mode="r", *args, **options):
        if "r" in mode and str(file).startswith(str(store.root)):
            raise OSError(number, os.strerror(number))
        return opening(file, mode, *args, **options)

    monkeypatch.setattr(io, "open", failing)
    for get in (
        partial(store.get_bytes, dict_.url, digest=dict_.digest),
        partial(
            store.get_directory, directory.url, digest=directory.digest, target=tmp_path / "copy"
        ),
    ):
        with pytest.raises(OSError, match=os.strerror(number)):
            get()
    assert not (tmp_path / "copy").exists()


def test_removal_that_was_interrupted_is_finished_by_the_next_call(store, source, monkeypatch):
    stored = store.put_directory(place(), source)
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(CheckpointError, match="cannot be deleted"):
            store.delete(stored.url)
    assert not store.exists(stored.url)
    assert paths_below(store.root / STUDY / TRIAL)

    store.delete(stored.url)

    assert paths_below(store.root) == [STUDY]


def test_directory_that_another_process_removes_while_it_is_empty_is_made_again(store, monkeypatch):
    mkdir, removed = Path.mkdir, []

    def mkdir_after_removal(path, *args, **options):
        if path.name == "1" and not removed:
            removed.append(path.parent)
            path.parent.rmdir()
        return mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir_after_removal)

    stored = store.put_bytes(place(), b"state")

    assert removed
    assert store.get_bytes(stored.url, digest=stored.digest) == b"state"


# checkpoints in the database


def test_packed_directory_unpacks_to_equal_contents(source, tmp_path):
    (source / "latest.bin").symlink_to("weights.bin")

    packed = pack_directory(source)
    copy = unpack_directory(packed, tmp_path / "copy")

    assert contents(copy) == contents(source)
    assert (copy / "layers" / "empty").is_dir()


def test_equal_directories_pack_to_equal_bytes(source):
    first = pack_directory(source)
    os.utime(source / "weights.bin", (1, 1))
    (source / "weights.bin").chmod(0o700)

    assert pack_directory(source) == first


def test_checkpoint_too_large_for_the_database_is_refused_with_the_cure(source):
    with pytest.raises(CheckpointError, match=r"3\.0 MiB.* at most 1 MiB.*checkpoints=URL"):
        pack_directory(source, limit_bytes=1 << 20)
    with pytest.raises(CheckpointError, match="checkpoints=URL"):
        check_inline_size((16 << 20) + 1)
    check_inline_size(16 << 20)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", tarfile.REGTYPE),
        ("/etc/evil", tarfile.REGTYPE),
        ("a/../../evil", tarfile.REGTYPE),
        ("./evil", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
        ("sparse", tarfile.GNUTYPE_SPARSE),
    ],
)
def test_archive_with_an_entry_that_pack_directory_never_writes_is_refused(tmp_path, name, kind):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        writer.addfile(tarfile.TarInfo("innocent"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "innocent"
        writer.addfile(member)

    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        unpack_directory(archive.getvalue(), tmp_path / "copy")

    assert paths_below(tmp_path) == ["copy"]


def test_damaged_archive_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        unpack_directory(b"no archive", tmp_path / "copy")


# URLs of stores


def test_store_is_opened_by_path_or_file_url(tmp_path):
    assert open_store(str(tmp_path)).root == tmp_path
    assert open_store(f"file://{tmp_path}/with%20space").root == tmp_path / "with space"
    assert open_store(DirectoryStore(tmp_path / "ä b").url).root == tmp_path / "ä b"


@pytest.mark.parametrize("url", ["", "ftp://host/path", "file://host/path", "file:", "inline:x://"])
def test_url_of_an_unsupported_store_is_refused(url):
    with pytest.raises(UsageError, match="Give a directory"):
        open_store(url)


@pytest.mark.parametrize("user", ["", "key:secret@", "a@b:secret@"])
def test_url_without_a_valid_form_is_refused_and_its_password_is_not_shown(user):
    with pytest.raises(UsageError, match=r"cannot go to 's3://\[abc': Invalid IPv6 URL"):
        open_store(f"s3://{user}[abc")
