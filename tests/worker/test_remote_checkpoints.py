"""A worker keeps its checkpoints in an S3 server; killed and slow stores lose nothing."""

import pytest
from fleet.workers import eventually

from studydb.db.schema import checkpoint


def test_killed_worker_goes_on_from_its_checkpoint_in_s3(stage, s3_server):
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


def test_training_goes_on_without_its_bucket_and_status_says_why(stage, s3_server):
    stage.create("obedient:gated", checkpoints="s3://no-such-bucket")
    stage.open_gate("all")

    assert stage.run() == 0

    (error,) = eventually(lambda: stage.events("checkpoint failed"))
    assert stage.steps() == [1, 2, 3, 4]
    assert "could not be written to s3://no-such-bucket" in error["error"]
    assert "s3://no-such-bucket" in stage.command("status", "staged")


def test_warm_starts_go_on_in_a_study_whose_checkpoints_are_in_s3(stage, s3_server):
    stage.create("obedient:gated", checkpoints=f"s3://{s3_server.bucket}", num_trials=2)
    stage.open_gate("all")

    assert stage.run() == 0

    assert [stage.attempts(number)[0].start for number in (0, 1)] == ["warm", "warm"]


def reads(server):
    """The objects that were read since the requests were cleared."""
    return [path for method, path in server.requests if method == "GET" and "/models/" in path]


@pytest.mark.parametrize("size", ["10GB", "0"])
def test_resume_on_the_same_host_reads_no_object(
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
