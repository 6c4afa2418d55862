"""
Faults of stores: what the trial does, and what `status` or the worker tells a person to do.

A checkpoint whose bytes or signature are wrong is never restored. docs/checkpoints.md has a table
of the faults.
"""

import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from harness.arrange import change, rows

import studydb
from studydb.artifacts import remote_faults
from studydb.db.schema import checkpoint
from studydb.operations.reads import list_rungs


@pytest.fixture(autouse=True)
def without_cache(monkeypatch):
    monkeypatch.setenv("STUDYDB_CACHE_SIZE", "0")


@pytest.fixture
def stage(sqlite_stage, tmp_path):
    sqlite_stage.store = tmp_path / "store"
    return sqlite_stage


def saved_twice(stage, store):
    """Kill a worker after its trial's second checkpoint; return both rows, oldest first."""
    stage.create("obedient:gated", checkpoints=store, space={"n_steps": 3})
    worker = stage.start()
    stage.open_gate(1)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    worker.kill()
    return stage.rows(checkpoint, order=checkpoint.c.id)


def status(stage):
    return " ".join(stage.command("status", "staged").split())


def file_of(row):
    return Path(unquote(urlsplit(row.url).path))


# a save that fails


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["a file", "read-only", "no bucket", "no credentials"])
def test_training_goes_on_when_no_checkpoint_can_be_stored(stage, what, request, monkeypatch):
    store, says = str(stage.store), "cannot be made"
    if what == "read-only":
        store = "/proc/store"  # tests may run as root, who cannot write here either
    elif what != "a file":
        bucket = request.getfixturevalue("s3_server").bucket
        store = f"s3://{bucket if what == 'no credentials' else 'no-such-bucket'}"
        says = "`studydb set NAME checkpoints=URL`"
    if what == "no credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        says = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    stage.create("obedient:gated", checkpoints=store, space={"n_steps": 2})
    if what == "a file":
        stage.store.write_text("")
    stage.open_gate("all")

    assert stage.run() == 0

    shown = status(stage)
    assert stage.steps() == [1, 2]
    assert "checkpoint failed" in shown
    assert says in shown
    assert "raining continues" in shown
    assert rows(stage.study.database, "SELECT count(*) FROM checkpoint") == [(0,)]


# a restore that fails


def truncate(stage, row):
    file_of(row).write_bytes(b"")


def flip_a_bit(stage, row):
    data = bytearray(file_of(row).read_bytes())
    data[len(data) // 2] ^= 1
    file_of(row).write_bytes(data)


def remove(stage, row):
    file_of(row).unlink()


def replace_by_the_older_object(stage, row):
    (older, *_) = stage.rows(checkpoint, order=checkpoint.c.id)
    shutil.copyfile(file_of(older), file_of(row))


def point_to_the_older_object(stage, row):
    (older, *_) = stage.rows(checkpoint, order=checkpoint.c.id)
    change(stage.study.database, f"UPDATE checkpoint SET url = '{older.url}' WHERE id = {row.id}")


def take_url_digest_and_signature_of_the_older(stage, row):
    (older, *_) = stage.rows(checkpoint, order=checkpoint.c.id)
    values = f"url = '{older.url}', digest = '{older.digest}', mac = '{older.mac}'"
    change(stage.study.database, f"UPDATE checkpoint SET {values} WHERE id = {row.id}")


def name_a_foreign_file(stage, row):
    foreign = stage.folder / "foreign"
    foreign.write_bytes(file_of(row).read_bytes())
    change(
        stage.study.database,
        f"UPDATE checkpoint SET url = '{foreign.as_uri()}' WHERE id = {row.id}",
    )


def forge_the_signature(stage, row):
    change(stage.study.database, f"UPDATE checkpoint SET mac = '{'0' * 64}' WHERE id = {row.id}")


def raise_the_step(stage, row):
    change(stage.study.database, f"UPDATE checkpoint SET step = 99 WHERE id = {row.id}")


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "is damaged"),
        (flip_a_bit, "is damaged"),
        (remove, "is missing"),
        (replace_by_the_older_object, "is damaged"),
        (point_to_the_older_object, "is damaged"),
        (take_url_digest_and_signature_of_the_older, "not signed by a key of this user"),
        (name_a_foreign_file, "names no checkpoint of"),
        (forge_the_signature, "not signed by a key of this user"),
        (raise_the_step, "not signed by a key of this user"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_trial_falls_back_to_the_previous_checkpoint_and_status_says_why(stage, damage, says):
    _, newest = saved_twice(stage, str(stage.store))
    damage(stage, newest)
    stage.open_gate("all")

    assert stage.run() == 0

    assert [row.start_step for row in stage.attempts()] == [1, 2]
    assert stage.steps() == [1, 2, 3]
    assert len(stage.events("checkpoint corrupt")) == 1
    shown = status(stage)
    assert "checkpoint corrupt" in shown
    assert says in shown


@pytest.mark.slow
def test_trial_starts_from_scratch_if_both_checkpoints_are_damaged(stage):
    for row in saved_twice(stage, str(stage.store)):
        flip_a_bit(stage, row)
    stage.open_gate("all")

    assert stage.run() == 0

    assert [row.start_step for row in stage.attempts()] == [1, 1]
    assert len(stage.events("checkpoint corrupt")) == 2


@pytest.mark.slow
def test_trial_that_begins_from_an_older_checkpoint_is_judged_at_all_later_rungs(stage):
    study = stage.create(
        "obedient:gated",
        checkpoints=stage.store,
        keep=studydb.Keep(last=4),
        space={"n_steps": 3},
        scheduler=studydb.OneEpoch(i=2, top_k=1, max_t=9),
        num_trials=2,
    )
    stage.open_gate("all")
    assert stage.run(max_trials=1) == 0
    study.enqueue({}, checkpoint=0)
    change(study.database, f"UPDATE checkpoint SET digest = '{'0' * 64}' WHERE step > 1")

    assert stage.run() == 0

    assert stage.attempts(1)[0].start_step == 2
    (rung,) = list_rungs(study.database, study.record, limit=9)
    assert rung.entries == 2


@pytest.mark.nightly
def test_missing_store_ends_the_worker_and_no_checkpoint_is_marked_corrupt(stage):
    saved_twice(stage, str(stage.store))
    stage.store.rename(stage.folder / "moved")
    stage.open_gate("all")

    worker = stage.start()
    code = worker.exit_code(60.0)
    (stage.folder / "moved").rename(stage.store)
    second = stage.run()

    assert (code, second) == (1, 0)
    assert "Mount it, or use a host that has it" in worker.output()
    assert stage.events("checkpoint corrupt") == []
    assert [row.start_step for row in stage.attempts()][-1] == 3
    assert (stage.trial().failures, stage.trial().losses) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bucket", "credentials"])
def test_no_checkpoint_is_marked_corrupt_if_this_host_cannot_use_the_store(
    stage, s3_server, monkeypatch, what
):
    monkeypatch.setattr(remote_faults, "READ_PATIENCE_S", 1.0)
    saved_twice(stage, f"s3://{s3_server.bucket}/models")
    stage.open_gate("all")
    with monkeypatch.context() as patch:
        if what == "credentials":
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.delenv(name)
        else:
            change(
                stage.study.database,
                "UPDATE study SET checkpoints = 's3://no-such-bucket/models'",
            )
        worker = stage.start()
        code = worker.exit_code(90.0)
    change(stage.study.database, f"UPDATE study SET checkpoints = 's3://{s3_server.bucket}/models'")
    second = stage.run()

    says = {"credentials": "Set AWS_ACCESS_KEY_ID", "bucket": "does not exist"}[what]
    assert (code, second) == (1, 0)
    assert says in worker.output()
    assert stage.events("checkpoint corrupt") == []
    assert [row.start_step for row in stage.attempts()][-1] == 3


@pytest.mark.nightly
def test_trial_falls_back_to_the_previous_checkpoint_if_its_s3_object_is_missing(stage, s3_server):
    _, newest = saved_twice(stage, f"s3://{s3_server.bucket}/models")
    key = newest.url.split("/", 3)[3]
    s3_server.client().delete_object(Bucket=s3_server.bucket, Key=key)
    stage.open_gate("all")

    assert stage.run() == 0

    assert [row.start_step for row in stage.attempts()] == [1, 2]
    assert "is missing" in status(stage)
