"""`study.set(checkpoints=…)` or `studydb set` changes the checkpoint store while a worker runs."""

from pathlib import Path

import pytest
from fleet.workers import eventually

from studydb.db.schema import checkpoint
from studydb.operations.overview import study_problems


def urls(stage):
    """The URLs of the checkpoints that are not deleted, oldest first."""
    kept = stage.rows(checkpoint, checkpoint.c.removed_at.is_(None), order=checkpoint.c.id)
    return [row.url for row in kept]


def kill_child(worker):
    """Kill the process of the worker's trial; the worker starts the trial's next attempt."""
    (child,) = worker.children()
    child.kill()


@pytest.mark.slow
def test_after_a_store_change_attempts_save_to_the_new_store_and_restore_from_both(stage, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    stage.create("obedient:gated", checkpoints="inline:")
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    stage.study.set(checkpoints=elsewhere)
    kill_child(worker)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    at_first = urls(stage)
    stage.study.set(checkpoints="inline:")
    kill_child(worker)
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    kill_child(worker)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    assert at_first[0] == "inline:"
    assert at_first[1].startswith(f"{elsewhere.as_uri()}/")
    assert [row.start_step for row in stage.attempts()] == [1, 2, 3, 4]
    assert stage.steps() == [1, 2, 3, 4]
    assert stage.events("checkpoint corrupt") == []
    assert urls(stage) == ["inline:", "inline:"]
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []


def test_running_attempt_saves_in_the_new_place_after_its_directory_was_moved(stage, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    stage.create("obedient:gated", checkpoints=first, keep="last=9")
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    first.rename(second)
    stage.study.set(checkpoints=second)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    places = [
        Path(url.removeprefix("file://")).relative_to(tmp_path).parts[0] for url in urls(stage)
    ]
    assert places == ["first", "second", "second", "second"]
    assert len(stage.attempts()) == 1
    assert stage.events("checkpoint failed") == []
    assert not first.exists()


@pytest.mark.slow
def test_checkpoint_too_large_for_the_database_is_stored_after_a_change_of_store(postgres_stage):
    postgres_stage.create("obedient:gated", space={"n_steps": 2, "size_bytes": 17 << 20})
    worker = postgres_stage.start()
    (error,) = eventually(lambda: postgres_stage.events("checkpoint failed"))

    postgres_stage.study.set(checkpoints=postgres_stage.folder / "elsewhere")
    kill_child(worker)
    postgres_stage.await_trial(lambda row: row.checkpoint_step == 1)
    kill_child(worker)
    postgres_stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    assert "a checkpoint could not be stored: The checkpoint has 17.0 MiB" in worker.output()
    assert "16 MiB" in error["error"]
    assert "`studydb set NAME checkpoints=URL`" in error["error"]
    problems = study_problems(postgres_stage.study.database, postgres_stage.study.record)
    assert error in [row.data for row in problems if row.kind == "checkpoint failed"]
    assert [row.start_step for row in postgres_stage.attempts()] == [1, 1, 2]
    assert postgres_stage.steps() == [1, 2]


@pytest.mark.nightly
def test_checkpoint_store_of_a_running_study_can_change_to_s3_and_back(
    stage, tmp_path, s3_server, monkeypatch
):
    monkeypatch.setenv("STUDYDB_CACHE_SIZE", "0")
    remote, local = f"s3://{s3_server.bucket}/models", str(tmp_path / "local")
    stage.create("obedient:gated", checkpoints=local, keep="last=9")
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    stage.command("set", "staged", f"checkpoints={remote}")
    kill_child(worker)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    stage.command("set", "staged", f"checkpoints={local}")
    kill_child(worker)
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    kill_child(worker)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    places = [url.split("://")[0] for url in urls(stage)]
    assert places == ["file", "s3", "file", "file"]
    assert [row.start_step for row in stage.attempts()] == [1, 2, 3, 4]
    assert stage.events("checkpoint corrupt") == []
    saved = stage.study.trial(0).checkpoints
    assert [one.to_dict()["step"] for one in saved] == [1, 2, 3, 4]
    assert len(s3_server.objects()) == 1
    stage.command("delete", "staged", "--yes")
    assert s3_server.objects() == []
