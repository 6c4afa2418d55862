"""Checkpoint bytes: whole or not there, and known again by their digest."""

import dataclasses
import io
import multiprocessing
import os
import resource
import tarfile
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from studydb.artifacts import (
    DirectoryStore,
    Place,
    check_inline_size,
    checkpoint_payload,
    digest_of,
    is_signed,
    open_store,
    pack_directory,
    scan,
    unpack_directory,
)
from studydb.artifacts import tree as trees
from studydb.domain.errors import CheckpointError, UsageError
from studydb.domain.records import Checkpoint
from studydb.settings import Key, Keyring, frame

STUDY, TRIAL = "8f0e6d5c-2a51-4c9e-9d57-3c1f0a6b7e21", "1b7c4f9a-6d3e-4b0a-8f25-90e1d2c3b4a5"


def place(step=3, attempt=1):
    return Place(STUDY, TRIAL, attempt, step, str(uuid.uuid4()))


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


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


def everything_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# bytes


def test_bytes_come_back_from_where_the_layout_says(store):
    where = place(step=7, attempt=2)

    stored = store.put_bytes(where, b"state")

    path = store.root / STUDY / TRIAL / "2" / f"7-{where.checkpoint_uuid}"
    assert stored.url == path.as_uri()
    assert (stored.digest, stored.size_bytes) == (digest_of(b"state"), 5)
    assert store.get_bytes(stored.url, digest=stored.digest) == b"state"
    assert list(path.parent.iterdir()) == [path]


def test_changed_bytes_are_not_handed_out(store):
    stored = store.put_bytes(place(), b"state")
    next(store.root.rglob("3-*")).write_bytes(b"stave")

    with pytest.raises(CheckpointError, match="is damaged"):
        store.get_bytes(stored.url, digest=stored.digest)


def test_missing_bytes_are_a_checkpoint_error(store):
    stored = store.put_bytes(place(), b"state")
    store.delete(stored.url)

    with pytest.raises(CheckpointError, match="No such file"):
        store.get_bytes(stored.url, digest=stored.digest)


def test_delete_is_idempotent_and_takes_one_object(store, source):
    kept = store.put_bytes(place(), b"kept")
    gone = [store.put_bytes(place(), b"gone"), store.put_directory(place(), source)]

    for stored in [*gone, *gone]:
        store.delete(stored.url)

    assert [store.exists(stored.url) for stored in [kept, *gone]] == [True, False, False]


def test_delete_leaves_no_empty_directories_of_trials(store):
    first, second = store.put_bytes(place(), b"1"), store.put_bytes(place(attempt=2), b"2")

    store.delete(first.url)
    assert everything_below(store.root)[-1].startswith(f"{STUDY}/{TRIAL}/2/")
    store.delete(second.url)

    assert everything_below(store.root) == [STUDY]


def test_delete_on_a_host_without_the_directory_says_so(store):
    stored = store.put_bytes(place(), b"kept")
    unmounted = store.root.rename(store.root.with_name("elsewhere"))

    with pytest.raises(CheckpointError, match=r"does not exist on this host\. Mount it"):
        store.delete(stored.url)

    unmounted.rename(store.root)
    assert store.get_bytes(stored.url, digest=stored.digest) == b"kept"


def test_deleting_a_study_leaves_the_others(store):
    other = store.put_bytes(Place(str(uuid.uuid4()), TRIAL, 1, 1, str(uuid.uuid4())), b"x")
    store.put_bytes(place(), b"y")

    store.delete_study(STUDY)
    store.delete_study(STUDY)

    assert store.exists(other.url)
    assert not (store.root / STUDY).exists()


@pytest.mark.parametrize("study_uuid", ["", ".", "..", "/", "../other", "-" * 36, f"{STUDY}\n"])
def test_deleting_what_is_no_study_is_refused(store, study_uuid):
    with pytest.raises(CheckpointError, match="is not a study's UUID"):
        store.delete_study(study_uuid)


@pytest.mark.parametrize("field", ["study_uuid", "trial_uuid", "checkpoint_uuid"])
@pytest.mark.parametrize("text", ["..", "/etc", "../../home", f"../{TRIAL}"])
def test_place_is_made_of_uuids_alone(store, field, text):
    with pytest.raises(CheckpointError, match="'s UUID: a program other"):
        store.put_bytes(dataclasses.replace(place(), **{field: text}), b"x")

    assert not store.root.exists()


@pytest.mark.parametrize("planted", [1, 2, 3])
def test_link_below_the_store_leads_nowhere_out_of_it(store, tmp_path, planted):
    stored = store.put_bytes(place(), b"state")
    outside = tmp_path / "outside"
    path = Path(unquote(urlsplit(stored.url).path))
    replaced = [path.parents[2], path.parents[1], path.parents[0]][planted - 1]
    replaced.rename(outside)
    replaced.symlink_to(outside)

    with pytest.raises(CheckpointError, match="leads out of"):
        store.delete(stored.url)
    with pytest.raises(CheckpointError, match="leads out of"):
        store.get_bytes(stored.url, digest=stored.digest)

    assert [name for name in everything_below(outside) if name.endswith(path.name)]


def test_deleting_a_study_removes_a_link_and_not_what_it_stands_for(store, tmp_path):
    outside = tmp_path / "thesis"
    (outside / "chapters").mkdir(parents=True)
    store.root.mkdir()
    (store.root / STUDY).symlink_to(outside)

    store.delete_study(STUDY)

    assert everything_below(store.root) == []
    assert everything_below(outside) == ["chapters"]


@pytest.mark.parametrize("url", ["http://[", "", "file:///etc/passwd", "inline:", "a\0b"])
def test_url_of_no_object_is_refused(store, url):
    with pytest.raises(CheckpointError, match="names no checkpoint"):
        store.delete(url)


def test_moved_store_still_finds_its_objects(store, tmp_path):
    stored = store.put_bytes(place(), b"state")
    store.root.rename(tmp_path / "moved")

    moved = DirectoryStore(tmp_path / "moved")

    assert moved.get_bytes(stored.url, digest=stored.digest) == b"state"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "",
        "inline:",
        f"file:///a/{STUDY}/{TRIAL}/1/..",
        f"file:///a/{STUDY}/{TRIAL}/../3-{STUDY}",
        f"file:///a/{STUDY}/{TRIAL}/1/3-{STUDY}%2F..%2F..",
    ],
    ids=["elsewhere", "empty", "inline", "parent", "inside-parent", "quoted-parent"],
)
def test_url_from_a_row_cannot_reach_outside_the_store(store, url):
    for reach in (store.delete, store.exists, lambda url: store.get_bytes(url, digest="")):
        with pytest.raises(CheckpointError, match="names no checkpoint"):
            reach(url)


# directories


def test_directory_comes_back_as_a_copy(store, source, tmp_path):
    stored = store.put_directory(place(), source)

    copy = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    (copy / "weights.bin").write_bytes(b"trained on")
    again = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "again")

    assert contents(again) == contents(source)
    assert (again / "layers" / "empty").is_dir()
    assert stored.size_bytes == (3 << 20) + 4


def test_digest_is_of_names_and_contents_alone(store, source, tmp_path):
    first = store.put_directory(place(), source)
    (source / "weights.bin").chmod(0o700)
    os.utime(source / "weights.bin", (1, 1))
    same = store.put_directory(place(), source)
    (source / "weights.bin").rename(source / "weights2.bin")
    renamed = store.put_directory(place(), source)

    assert first.digest == same.digest
    assert first.digest != renamed.digest


@pytest.mark.parametrize("damage", ["changed", "added", "removed", "renamed"])
def test_damaged_directory_is_not_handed_out(store, source, tmp_path, damage):
    stored = store.put_directory(place(), source)
    victim = next(store.root.rglob("0.bin"))
    if damage == "changed":
        victim.write_bytes(b"one!")
    elif damage == "added":
        victim.with_name("1.bin").write_bytes(b"")
    elif damage == "removed":
        victim.unlink()
    else:
        victim.rename(victim.with_name("00.bin"))

    with pytest.raises(CheckpointError, match="is damaged"):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_missing_directory_is_a_checkpoint_error(store, source, tmp_path):
    stored = store.put_directory(place(), source)
    store.delete(stored.url)

    with pytest.raises(CheckpointError, match="is missing"):
        store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")


def test_links_within_become_what_they_stand_for(store, source, tmp_path):
    (source / "latest.bin").symlink_to("weights.bin")
    (source / "newest").symlink_to(source / "layers")

    stored = store.put_directory(place(), source)
    copy = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    assert not any(path.is_symlink() for path in copy.rglob("*"))
    assert (copy / "latest.bin").read_bytes() == (source / "weights.bin").read_bytes()
    assert (copy / "newest" / "0.bin").read_bytes() == b"zero"


def test_checkpoint_may_itself_be_reached_through_a_link(store, source, tmp_path):
    (tmp_path / "link").symlink_to(source)

    assert store.put_directory(place(), tmp_path / "link").size_bytes > 0


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere", "has no existing target"),
        ("../outside", "leads out of it"),
        ("/etc/hostname", "leads out of it"),
        (".", "leads back to itself"),
        ("layers/..", "leads back to itself"),
        ("link", "has no existing target"),
    ],
)
def test_links_that_cannot_be_copied_are_refused(store, source, tmp_path, target, complaint):
    (tmp_path / "outside").write_text("secret")
    (source / "link").symlink_to(target)

    with pytest.raises(CheckpointError, match=complaint):
        store.put_directory(place(), source)

    assert not store.root.exists()


def test_sockets_and_pipes_are_refused(store, source):
    os.mkfifo(source / "pipe")

    with pytest.raises(CheckpointError, match="neither a file nor a directory"):
        store.put_directory(place(), source)


def test_file_or_nothing_in_place_of_a_directory_is_refused(store, source):
    with pytest.raises(CheckpointError, match="is a file; give a directory"):
        store.put_directory(place(), source / "weights.bin")
    with pytest.raises(CheckpointError, match="does not exist"):
        store.put_directory(place(), source / "nothing")


def test_too_many_files_are_refused(source, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILES", 3)

    with pytest.raises(CheckpointError, match="more than 3 files"):
        scan(source)


# failures


def put_with_little_room(store, source, results):
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


def test_full_disk_is_an_error_with_its_cause_and_leaves_nothing(store, source):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=put_with_little_room, args=(store, source, results))

    process.start()
    failures = [results.get(timeout=30) for _ in range(2)]
    process.join()

    assert all("File too large" in failure for failure in failures)
    assert everything_below(store.root) == sorted([STUDY, f"{STUDY}/{TRIAL}", f"{STUDY}/{TRIAL}/1"])


def test_store_below_a_file_is_an_error_with_its_cause(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="Not a directory"):
        DirectoryStore(tmp_path / "file").put_bytes(place(), b"")


def test_every_file_is_on_disk_before_its_name_is(store, source, monkeypatch):
    order = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (order.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)),
    )
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (order.append(f"rename {to}"), rename(path, to))
    )

    store.put_directory(place(), source)

    renamed = next(index for index, entry in enumerate(order) if entry.startswith("rename"))
    final = order[renamed].removeprefix("rename ")
    written_before = " ".join(order[:renamed])
    assert all(name in written_before for name in ("weights.bin", "0.bin", "läyer name"))
    assert order[renamed + 1 :] == [str(Path(final).parent)]
    assert str(store.root) in order[:renamed]


# inline


def test_inline_directory_comes_back(source, tmp_path):
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


def test_what_does_not_fit_into_the_database_names_the_command(source):
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
def test_archive_holds_files_and_directories_within_its_target_alone(tmp_path, name, kind):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        writer.addfile(tarfile.TarInfo("innocent"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "innocent"
        writer.addfile(member)

    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        unpack_directory(archive.getvalue(), tmp_path / "copy")

    assert everything_below(tmp_path) == ["copy"]


def test_damaged_archive_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        unpack_directory(b"no archive", tmp_path / "copy")


# stores by URL, signatures


def test_url_or_path_names_a_directory(tmp_path):
    assert open_store(str(tmp_path)).root == tmp_path
    assert open_store(f"file://{tmp_path}/with%20space").root == tmp_path / "with space"
    assert open_store(DirectoryStore(tmp_path / "ä b").url).root == tmp_path / "ä b"


@pytest.mark.parametrize(
    "url", ["", "s3://bucket/path", "file://host/path", "file:", "inline:x://"]
)
def test_store_that_is_not_supported_is_refused(url):
    with pytest.raises(UsageError, match="Give a directory"):
        open_store(url)


SIGNED = {"kind": "dict", "trial_uuid": TRIAL, "attempt": 1, "step": 2, "digest": "d"}


def test_signature_covers_kind_trial_attempt_step_and_digest():
    base = SIGNED
    other = {"trial_uuid": STUDY, "attempt": 2, "step": 3, "digest": "e", "kind": "directory"}
    changes = [{}, *({name: value} for name, value in other.items())]

    payloads = {checkpoint_payload(**{**base, **change}) for change in changes}

    assert len(payloads) == len(changes)


RING = Keyring((Key(b"k" * 32),), Path("keys"))


def signed_as(payload, *, kind):
    """A checkpoint's row with a signature for this payload."""
    key_id, mac = RING.sign(payload)
    told = {"url": "inline:", "size_bytes": 1, "key_id": key_id, "mac": mac, "trial_id": 1}
    named = {name: SIGNED[name] for name in ("attempt", "step", "digest")}
    return Checkpoint(uuid=str(uuid.uuid4()), kind=kind, **named, **told)


@pytest.mark.parametrize("kind", ["dict", "directory"])
def test_signature_holds_for_one_kind(kind):
    row = signed_as(checkpoint_payload(**SIGNED | {"kind": kind}), kind=kind)

    assert is_signed(RING, row, trial_uuid=TRIAL)
    for other in {"dict", "directory", "Dict", ""} - {kind}:
        assert not is_signed(RING, dataclasses.replace(row, kind=other), trial_uuid=TRIAL)


def test_first_form_of_the_signature_holds_for_a_dict_alone():
    first = frame("studydb checkpoint 1", TRIAL, "1", "2", "d")

    assert is_signed(RING, signed_as(first, kind="dict"), trial_uuid=TRIAL)
    assert not is_signed(RING, signed_as(first, kind="dict"), trial_uuid=STUDY)
    assert not is_signed(RING, signed_as(first, kind="directory"), trial_uuid=TRIAL)
    assert not is_signed(RING, signed_as(first, kind=""), trial_uuid=TRIAL)
