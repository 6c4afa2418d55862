"""Checkpoints in S3, and their cache: kills, slow uploads and a missing bucket cost no result."""

import pytest
from fleet.workers import eventually

from studydb.db.schema import checkpoint, upload
from studydb.lease.upload_collector import collect_uploads

FIVE_PARTS_BYTES = 40 << 20


@pytest.mark.slow
def test_trial_of_a_killed_worker_goes_on_from_its_checkpoint_in_s3(stage, s3_server):
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}/models")
    first = stage.start()
    stage.open_gate(1)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    first.kill()

    stage.open_gate("all")
    assert stage.run() == 0

    kept = stage.rows(checkpoint, checkpoint.c.removed_at.is_(None), order=checkpoint.c.id)
    assert [row.start_step for row in stage.attempts()] == [1, 3]
    assert stage.steps() == [1, 2, 3, 4]
    assert [row.step for row in kept] == [3, 4]
    assert all(row.url.startswith(f"s3://{s3_server.bucket}/models/") for row in kept)
    assert len(s3_server.objects()) == 2
    assert stage.study.best_trial.checkpoint.to_dict()["step"] == 4


@pytest.mark.nightly
@pytest.mark.parametrize("killed", ["child", "worker"])
def test_parts_of_an_upload_whose_process_was_killed_are_deleted(stage, s3_server, killed):
    stage.create(
        "obedient:gated",
        checkpoints=f"s3://{s3_server.bucket}/models",
        space={"size_bytes": FIVE_PARTS_BYTES, "n_steps": 2},
    )
    stage.open_gate("all")
    s3_server.writes.clear()
    first = stage.start()
    eventually(s3_server.unfinished)
    if killed == "child":
        eventually(first.children)[0].kill()
    else:
        first.kill()
    s3_server.writes.set()
    assert (stage.run() if killed == "worker" else first.exit_code(60.0)) == 0

    study = stage.study
    eventually(lambda: collect_uploads(study.database, study.record) == 0)

    rows = stage.rows(checkpoint, order=checkpoint.c.id)
    assert [len(stage.attempts()), stage.steps(), [row.step for row in rows]] == [2, [1, 2], [1, 2]]
    assert stage.rows(upload) == []
    assert s3_server.unfinished() == []
    assert s3_server.objects() == sorted(row.url.split("/", 3)[3] for row in rows)
    assert stage.study.best_trial.checkpoint.to_dict()["step"] == 2


@pytest.mark.nightly
def test_training_goes_on_if_the_bucket_is_missing_and_status_says_so(stage, s3_server):
    stage.create("obedient:gated", checkpoints="s3://no-such-bucket")
    stage.open_gate("all")

    assert stage.run() == 0

    (error,) = eventually(lambda: stage.events("checkpoint failed"))
    assert stage.steps() == [1, 2, 3, 4]
    assert "could not be written to s3://no-such-bucket" in error["error"]
    assert "s3://no-such-bucket" in stage.command("status", "staged")


@pytest.mark.nightly
def test_worker_goes_on_without_a_cache_if_the_folder_of_the_cache_cannot_be_used(
    stage, s3_server, monkeypatch
):
    monkeypatch.setenv("STUDYDB_CACHE_DIR", "~nobody-here/x")
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}", num_trials=2)
    stage.open_gate("all")
    worker = stage.start()

    assert worker.exit_code(60.0) == 0

    assert worker.output().count("STUDYDB_CACHE_DIR is '~nobody-here/x'") == 1
    assert [stage.trial(number).state for number in (0, 1)] == ["TERMINATED"] * 2
    assert len(s3_server.objects()) == 4


@pytest.mark.nightly
def test_trials_start_warm_in_a_study_whose_checkpoints_are_in_s3(stage, s3_server):
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}", num_trials=2)
    stage.open_gate("all")

    assert stage.run() == 0

    assert [stage.attempts(number)[0].start for number in (0, 1)] == ["warm", "warm"]


@pytest.mark.nightly
def test_paused_trial_has_the_checkpoint_of_its_last_report(stage, s3_server):
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}")
    s3_server.writes.clear()
    stage.start()
    stage.await_result()
    assert stage.trial().checkpoint_step == 0
    stage.command("pause", "staged", "0")
    stage.open_gate("all")
    s3_server.writes.set()

    row = stage.await_state("PAUSED")

    assert row.last_step >= 1
    assert row.checkpoint_step == row.last_step


@pytest.mark.nightly
def test_command_saves_to_s3_and_ends_after_its_last_checkpoint_is_stored(
    create_command, script, stage, s3_server
):
    saves = "\n".join(
        f'echo state-{step} > "$STUDYDB_SAVE/state"; studydb report error=1 --save'
        for step in (1, 2, 3)
    )
    create_command(script(saves), checkpoints=f"s3://{s3_server.bucket}")

    assert stage.run() == 0

    rows = stage.rows(checkpoint, checkpoint.c.removed_at.is_(None), order=checkpoint.c.id)
    assert stage.steps() == [1, 2, 3]
    assert [row.step for row in rows] == [2, 3]
    newest = stage.study.best_trial.checkpoints[-1]
    assert (newest.path / "state").read_text() == "state-3\n"


def reads(server):
    """The paths of the objects that were read since `server.requests` was cleared."""
    return [path for method, path in server.requests if method == "GET" and "/models/" in path]


@pytest.mark.nightly
@pytest.mark.parametrize("size", ["10GB", "0"])
def test_resume_on_the_same_host_reads_objects_only_without_a_cache(
    sqlite_stage, s3_server, monkeypatch, tmp_path, size
):
    monkeypatch.setenv("STUDYDB_CACHE_SIZE", size)
    monkeypatch.setenv("STUDYDB_CACHE_DIR", str(tmp_path / "cache"))
    stage = sqlite_stage
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}/models")
    first = stage.start()
    stage.open_gate(1)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    first.kill()
    s3_server.requests.clear()

    stage.open_gate("all")
    assert stage.run() == 0

    assert [row.start_step for row in stage.attempts()] == [1, 3]
    assert bool(reads(s3_server)) is (size == "0")
    assert (tmp_path / "cache").exists() is (size != "0")
