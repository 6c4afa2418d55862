"""Checkpoints in remote stores; tests use an S3 server on loopback, or `memory://` of fsspec."""

import json
import os
import subprocess
import sys
import threading
import uuid

import pytest

from studydb.artifacts import DirectoryStore, Place, digest_of, open_store, remote, remote_faults
from studydb.domain.errors import CheckpointError, UsageError

STUDY, TRIAL = "8f0e6d5c-2a51-4c9e-9d57-3c1f0a6b7e21", "1b7c4f9a-6d3e-4b0a-8f25-90e1d2c3b4a5"


def place(step=3, attempt=1, study=STUDY):
    return Place(study, TRIAL, attempt, step, str(uuid.uuid4()))


@pytest.fixture
def server(s3_server, monkeypatch):
    monkeypatch.setattr(remote_faults, "FIRST_WAIT_S", 0.01)
    return s3_server


@pytest.fixture(params=["s3", "memory"])
def store(request):
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4()}/prefix")
    server = request.getfixturevalue("server")
    return open_store(f"s3://{server.bucket}/prefix/")


@pytest.fixture
def s3(server):
    return open_store(f"s3://{server.bucket}/prefix")


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    (directory / "layers" / "empty").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(os.urandom(3 << 20))
    (directory / "layers" / "0.bin").write_bytes(b"zero")
    (directory / "läyer *?name").write_bytes(b"")
    (directory / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"bytes")
    return directory


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def object_of(stored):
    return "/".join(stored.url.split("/")[3:])


def test_bytes_come_back_and_the_url_names_study_trial_and_attempt(store):
    where = place(step=7, attempt=2)

    stored = store.put_bytes(where, b"state")

    assert stored.url == f"{store.url}/{STUDY}/{TRIAL}/2/7-{where.checkpoint_uuid}"
    assert (stored.digest, stored.size_bytes) == (digest_of(b"state"), 5)
    assert store.get_bytes(stored.url, digest=stored.digest) == b"state"
    assert store.exists(stored.url)


def test_empty_bytes_come_back(store):
    stored = store.put_bytes(place(), b"")

    assert store.get_bytes(stored.url, digest=stored.digest) == b""


def test_directory_comes_back_with_the_digest_that_a_directory_store_gives(store, source, tmp_path):
    where = place()

    stored = store.put_directory(where, source)
    target = store.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")

    directory = DirectoryStore(tmp_path / "local")
    directory.add_study(where.study_uuid)
    local = directory.put_directory(where, source)
    assert (stored.digest, stored.size_bytes) == (local.digest, local.size_bytes)
    assert contents(target) == contents(source)
    assert store.exists(stored.url)


def test_delete_removes_one_checkpoint_and_can_be_repeated(store, source):
    kept = store.put_bytes(place(), b"kept")
    gone = [store.put_bytes(place(), b"gone"), store.put_directory(place(), source)]

    for stored in [*gone, *gone]:
        store.delete(stored.url)

    assert [store.exists(stored.url) for stored in [kept, *gone]] == [True, False, False]


def test_delete_study_keeps_the_checkpoints_of_other_studies(store, source):
    other = store.put_bytes(place(study=str(uuid.uuid4())), b"x")
    stored = [store.put_bytes(place(), b"y"), store.put_directory(place(), source)]

    store.delete_study(STUDY)
    store.delete_study(STUDY)

    assert store.exists(other.url)
    assert [store.exists(one.url) for one in stored] == [False, False]


@pytest.mark.parametrize("study_uuid", ["", ".", "..", "/", "../other", f"{STUDY}\n"])
def test_delete_study_refuses_a_text_that_is_not_a_uuid(store, study_uuid):
    with pytest.raises(CheckpointError, match="is not a study's UUID"):
        store.delete_study(study_uuid)


def test_url_that_names_no_checkpoint_is_refused(store):
    for url in (f"{store.url}/secret", "s3://other/x", f"{store.url}/{STUDY}/../{TRIAL}/1/3-x"):
        with pytest.raises(CheckpointError, match="names no checkpoint"):
            store.get_bytes(url, digest="0" * 64)
        with pytest.raises(CheckpointError, match="names no checkpoint"):
            store.delete(url)


def test_checkpoint_whose_url_names_another_bucket_is_read_from_this_store(s3, server):
    stored = s3.put_bytes(place(), b"ours")
    foreign = stored.url.replace(server.bucket, "foreign")

    assert s3.get_bytes(foreign, digest=stored.digest) == b"ours"


# damage


def test_missing_objects_are_reported_as_missing(store, tmp_path):
    url = f"{store.url}/{'/'.join(place().parts)}"

    with pytest.raises(CheckpointError, match="is missing"):
        store.get_bytes(url, digest="0" * 64)
    with pytest.raises(CheckpointError, match="is missing"):
        store.get_directory(url, digest="0" * 64, target=tmp_path / "copy")
    assert not store.exists(url)


def test_object_replaced_by_another_is_refused(s3, server):
    first, second = s3.put_bytes(place(), b"first"), s3.put_bytes(place(), b"second")
    server.client().put_object(Bucket=server.bucket, Key=object_of(first), Body=b"second")

    with pytest.raises(CheckpointError, match="is damaged"):
        s3.get_bytes(first.url, digest=first.digest)
    assert s3.get_bytes(second.url, digest=second.digest) == b"second"


def test_changed_file_of_a_directory_is_refused_and_leaves_no_copy(s3, server, source, tmp_path):
    stored = s3.put_directory(place(), source)
    key = f"{object_of(stored)}/files/1"
    server.client().put_object(Bucket=server.bucket, Key=key, Body=b"changed")

    with pytest.raises(CheckpointError, match="is damaged"):
        s3.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"{", "manifest cannot be read"),
        (lambda _: b"[]", "manifest cannot be read"),
        (lambda found: json.dumps(found | {"files": [["a", 1]]}).encode(), "cannot be read"),
        (lambda found: json.dumps(found | {"files": []}).encode(), "is damaged: its SHA-256"),
        (lambda found: json.dumps(found | {"directories": ["../out"]}).encode(), "no directory"),
        (lambda found: json.dumps(found | {"directories": ["/out"]}).encode(), "no directory"),
        (
            lambda found: json.dumps(found | {"directories": ["weights.bin"]}).encode(),
            "no directory",
        ),
        (
            lambda found: json.dumps(found | {"directories": ["weights.bin/a"]}).encode(),
            "no directory",
        ),
    ],
)
def test_changed_manifest_is_refused(s3, server, tmp_path, change, message):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights.bin").write_bytes(b"weights")
    stored = s3.put_directory(place(), tmp_path / "source")
    key = f"{object_of(stored)}/manifest"
    found = json.loads(server.client().get_object(Bucket=server.bucket, Key=key)["Body"].read())
    server.client().put_object(Bucket=server.bucket, Key=key, Body=change(found))

    with pytest.raises(CheckpointError, match=message):
        s3.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "out").exists()


def test_directory_without_its_manifest_counts_as_missing(s3, server, source, tmp_path):
    stored = s3.put_directory(place(), source)
    server.client().delete_object(Bucket=server.bucket, Key=f"{object_of(stored)}/manifest")

    assert not s3.exists(stored.url)
    with pytest.raises(CheckpointError, match="is missing"):
        s3.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    s3.delete(stored.url)
    assert server.objects() == []


# failing stores


def test_missing_bucket_is_not_reported_as_a_missing_checkpoint(server, tmp_path):
    store = open_store("s3://no-such-bucket/prefix")
    url = f"{store.url}/{'/'.join(place().parts)}"

    with pytest.raises(CheckpointError, match="could not be written to s3://no-such-bucket") as put:
        store.put_bytes(place(), b"state")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        store.get_bytes(url, digest="0" * 64)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        store.get_directory(url, digest="0" * 64, target=tmp_path / "copy")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        store.exists(url)
    with pytest.raises(CheckpointError, match="cannot be removed"):
        store.delete(url)
    assert "`studydb set NAME checkpoints=URL`" in str(put.value)


def test_host_without_credentials_is_told_how_to_give_them(server, monkeypatch):
    stored = open_store(f"s3://{server.bucket}/prefix").put_bytes(place(), b"state")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    __import__("s3fs").S3FileSystem.clear_instance_cache()
    store = open_store(f"s3://{server.bucket}/prefix")

    with pytest.raises(CheckpointError, match="Set AWS_ACCESS_KEY_ID"):
        store.put_bytes(place(), b"state")
    with pytest.raises(OSError, match="Set AWS_ACCESS_KEY_ID"):
        store.get_bytes(stored.url, digest=stored.digest)


@pytest.mark.nightly
def test_server_that_fails_one_request_in_four_loses_nothing(s3, server, source, tmp_path):
    server.fail_every = 4

    stored = s3.put_directory(place(), source)
    gone = s3.put_bytes(place(), b"gone")
    s3.get_directory(stored.url, digest=stored.digest, target=tmp_path / "copy")
    s3.delete(gone.url)

    server.fail_every = 0
    assert contents(tmp_path / "copy") == contents(source)
    assert not s3.exists(gone.url)


def test_search_for_a_checkpoint_is_repeated_after_a_transient_error(s3, monkeypatch):
    stored = s3.put_bytes(place(), b"state")
    look, cut = remote.RemoteStore._is_object, [ConnectionResetError("cut")]

    def look_later(store, path):
        if cut:
            raise cut.pop()
        return look(store, path)

    monkeypatch.setattr(remote.RemoteStore, "_is_object", look_later)

    assert s3.exists(stored.url)


@pytest.mark.slow
def test_save_waits_for_a_server_that_goes_away_for_a_while(s3, server):
    s3.put_bytes(place(), b"connected")
    server.stop()
    back = threading.Timer(1.0, server.start)
    back.start()

    stored = s3.put_bytes(place(), b"state")

    back.join()
    assert s3.get_bytes(stored.url, digest=stored.digest) == b"state"


@pytest.mark.nightly
def test_save_restore_and_delete_fail_if_the_server_stays_away(s3, server, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    stored = s3.put_bytes(place(), b"connected")
    monkeypatch.setattr(remote, "WRITE_PATIENCE_S", 0.5)
    monkeypatch.setattr(remote, "READ_PATIENCE_S", 0.5)
    monkeypatch.setattr(s3._files, "retries", 1)
    server.stop()
    try:
        with pytest.raises(CheckpointError, match="Training continues"):
            s3.put_bytes(place(), b"state")
        with pytest.raises(OSError, match="cannot be read on this host"):
            s3.get_bytes(stored.url, digest=stored.digest)
        with pytest.raises(CheckpointError, match="cannot be removed"):
            s3.delete(stored.url)
    finally:
        server.start()


def test_upload_that_fails_in_the_middle_leaves_no_object(s3, server, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    source = tmp_path / "large"
    source.mkdir()
    (source / "w").write_bytes(bytes(12 << 20))

    def failing(path):
        yield bytes(11 << 20)
        raise CheckpointError("the file cannot be read")

    monkeypatch.setattr(remote.tree, "chunks_of", failing)

    with pytest.raises(CheckpointError, match="the file cannot be read"):
        s3.put_directory(place(), source)
    assert server.objects() == []
    assert server.unfinished() == []


def test_abort_of_uploads_of_one_file_spares_a_file_whose_name_begins_with_its_name(s3, server):
    where = place()
    key = f"prefix/{'/'.join(where.parts)}"
    server.client().create_multipart_upload(Bucket=server.bucket, Key=f"{key}/files/10")

    s3._abort_leftover_uploads(f"{server.bucket}/{key}/files/1")

    assert server.unfinished() == [f"{key}/files/10"]


def test_save_aborts_earlier_unfinished_uploads_of_the_same_objects_only(
    s3, server, tmp_path, monkeypatch
):
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    whole, folder, other = place(), place(), place()
    (tmp_path / "w").write_bytes(bytes(6 << 20))
    for name in ("", "/files/0"):
        for one in (whole, folder, other):
            key = f"prefix/{'/'.join(one.parts)}{name}"
            server.client().create_multipart_upload(Bucket=server.bucket, Key=key)

    s3.put_bytes(whole, bytes(6 << 20))
    (tmp_path / "folder").mkdir()
    (tmp_path / "w").rename(tmp_path / "folder" / "w")
    s3.put_directory(folder, tmp_path / "folder")

    left = {key.removeprefix("prefix/") for key in server.unfinished()}
    assert "/".join(whole.parts) not in left
    assert f"{'/'.join(folder.parts)}/files/0" not in left
    assert f"{'/'.join(other.parts)}" in left


def test_multipart_upload_of_a_dead_process_is_removed_with_the_study(s3, server):
    key = f"prefix/{'/'.join(place().parts)}"
    server.client().create_multipart_upload(Bucket=server.bucket, Key=key)
    other = f"prefix/{uuid.uuid4()}/x"
    server.client().create_multipart_upload(Bucket=server.bucket, Key=other)

    s3.delete_study(STUDY)

    assert server.unfinished() == [other]


def test_store_that_shows_unfinished_files_renames_them_when_they_are_whole(source, monkeypatch):
    scheme = remote.Scheme("sftp", "", options=(), renames=True)
    monkeypatch.setitem(remote.SCHEMES, "memory", scheme)
    store = open_store(f"memory://{uuid.uuid4()}/prefix")
    written = []
    rename = store._files.mv
    monkeypatch.setattr(store._files, "mv", lambda *a, **k: written.append(a) or rename(*a, **k))

    stored = store.put_bytes(place(), b"state")
    directory = store.put_directory(place(), source)
    store.delete(directory.url)

    assert written[0][0].endswith(".part")
    assert written[0][1].endswith(stored.url.rpartition("/")[2])
    assert store.get_bytes(stored.url, digest=stored.digest) == b"state"
    assert [path for path in store._files.find(store._root) if path.endswith(".part")] == []


# URLs


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:hunter2@bucket/prefix", "must not hold credentials"),
        ("s3://key@bucket/prefix", "must not hold credentials"),
        ("sftp://user:hunter2@host/prefix", "must not hold credentials"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/a*", "contains"),
        ("s3://bucket/a?versionId=hunter2", "contains"),
        ("s3://bucket/a/../b", "leave it out"),
        ("s3://bucket/a/..", "leave it out"),
        ("s3://bucket/./", "leave it out"),
        ("s3://bucket//a", "leave it out"),
        ("https://host/path", "cannot go to"),
    ],
)
def test_wrong_url_of_a_remote_store_is_refused_without_showing_a_password(url, message):
    with pytest.raises(UsageError, match=message) as refused:
        open_store(url)
    if "hunter2@" in url:
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a", "s3://bucket/a/"])
def test_url_of_a_remote_store_may_end_with_a_slash_and_needs_no_prefix(url):
    assert open_store(url).url == url.rstrip("/")


def test_store_of_gs_abfs_or_sftp_opens_without_its_library():
    for url in (
        "gs://bucket/prefix",
        "abfs://container@account.dfs.core.windows.net/prefix",
        "sftp://user@host/path",
    ):
        store = open_store(f"{url}/")
        assert isinstance(store, remote.RemoteStore)
        assert store.url == url


def test_missing_library_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    store = open_store("gs://bucket/prefix")
    url = f"{store.url}/{'/'.join(place().parts)}"

    with pytest.raises(CheckpointError, match=r"pip install 'studydb\[gs\]'"):
        store.put_bytes(place(), b"state")
    with pytest.raises(OSError, match=r"pip install 'studydb\[gs\]'"):
        store.get_bytes(url, digest="0" * 64)
    with pytest.raises(OSError, match=r"pip install 'studydb\[gs\]'"):
        store.get_directory(url, digest="0" * 64, target=tmp_path / "copy")


def test_opening_a_store_imports_no_library_and_starts_no_thread():
    code = (
        "import sys, threading, studydb.artifacts as a; a.open_store('s3://bucket/prefix');"
        "assert not {'fsspec', 's3fs', 'botocore'} & set(sys.modules);"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


_ROUND = """
import resource, sys
from pathlib import Path
from studydb.artifacts import Place, open_store
store, source, target = open_store(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
names = ("8f0e6d5c-2a51-4c9e-9d57-3c1f0a6b7e21",) * 3
store.put_bytes(Place(*names[:2], 1, 1, names[2]), b"connect")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stored = store.put_directory(Place(*names[:2], 1, 2, names[2]), source)
store.get_directory(stored.url, digest=stored.digest, target=target)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.nightly
def test_memory_of_a_round_trip_does_not_grow_with_the_directory(s3, tmp_path):
    source = tmp_path / "large"
    source.mkdir()
    with (source / "w").open("wb") as file:
        file.truncate(180 << 20)

    done = subprocess.run(
        [sys.executable, "-c", _ROUND, s3.url, str(source), str(tmp_path / "copy")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) < 120
    assert (tmp_path / "copy" / "w").stat().st_size == 180 << 20


def test_delete_unfinished_aborts_the_multipart_uploads_of_one_checkpoint_only(s3, server):
    where, other = place(), place()
    for one in (where, other):
        key = f"prefix/{'/'.join(one.parts)}"
        server.client().create_multipart_upload(Bucket=server.bucket, Key=key)
        server.client().create_multipart_upload(Bucket=server.bucket, Key=f"{key}/files/0")

    s3.delete_unfinished(f"{s3.url}/{'/'.join(where.parts)}")

    kept = f"prefix/{'/'.join(other.parts)}"
    assert server.unfinished() == [kept, f"{kept}/files/0"]


def test_call_is_retried_only_after_a_transient_error(monkeypatch):
    monkeypatch.setattr(remote_faults, "FIRST_WAIT_S", 0.01)
    errors = [TimeoutError(), ConnectionError(), OSError()]

    def failing():
        if errors:
            raise errors.pop()
        return "done"

    assert remote_faults.retry_transient(failing, patience_s=60.0) == "done"
    for final in (FileNotFoundError(), PermissionError(), OSError(28, "full"), CheckpointError()):
        errors = [TimeoutError(), final]
        with pytest.raises(type(final)):
            remote_faults.retry_transient(failing, patience_s=60.0)
        assert len(errors) == 1


def test_delete_fails_if_the_directory_of_an_sftp_store_is_missing(monkeypatch):
    scheme = remote.Scheme("sftp", "", options=(), renames=True)
    monkeypatch.setitem(remote.SCHEMES, "memory", scheme)
    store = open_store(f"memory://{uuid.uuid4()}/prefix")
    url = f"{store.url}/{'/'.join(place().parts)}"

    with pytest.raises(CheckpointError, match="cannot be removed"):
        store.delete(url)
    store._files.makedirs(store._root)
    store.delete(url)


def test_uploads_on_every_page_of_the_list_are_aborted(s3, server, monkeypatch):
    where = place()
    url = f"{s3.url}/{'/'.join(where.parts)}"
    key = url.split("/", 3)[3]
    for number in range(3):
        server.client().create_multipart_upload(Bucket=server.bucket, Key=f"{key}/files/{number}")
    s3.exists(url)
    call = s3._files.call_s3
    monkeypatch.setattr(
        s3._files, "call_s3", lambda name, **given: one_per_page(call(name, **given), given)
    )

    s3.delete_unfinished(url)

    assert server.unfinished() == []


def one_per_page(found, given):
    """What S3 would answer if a page had one upload; moto's first page has all uploads."""
    uploads = sorted(found.get("Uploads") or (), key=lambda one: one["Key"])
    uploads = [one for one in uploads if one["Key"] > given.get("KeyMarker", "")]
    last = uploads[0] if uploads else {"Key": "", "UploadId": ""}
    return {
        "Uploads": uploads[:1],
        "IsTruncated": len(uploads) > 1,
        "NextKeyMarker": last["Key"],
        "NextUploadIdMarker": last["UploadId"],
    }
