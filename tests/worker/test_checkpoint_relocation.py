"""`study.set(checkpoints=…)`: the place of checkpoints changes while a worker lives."""

from fleet.workers import eventually

from studydb.db.schema import checkpoint


def urls(stage):
    """Where the checkpoints are that may still be restored, oldest first."""
    kept = stage.rows(checkpoint, checkpoint.c.removed_at.is_(None), order=checkpoint.c.id)
    return [row.url for row in kept]


def lose_child(stage, worker):
    """Kill what the trial runs in; its worker lives on and begins the next attempt."""
    (child,) = worker.children()
    child.kill()


def test_attempts_after_a_change_of_store_save_to_the_new_and_restore_from_all(stage, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    stage.create("obedient:gated", checkpoints="inline:")
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    stage.study.set(checkpoints=elsewhere)
    lose_child(stage, worker)
    stage.await_trial(lambda row: row.checkpoint_step == 2)
    at_first = urls(stage)
    stage.study.set(checkpoints="inline:")
    lose_child(stage, worker)
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    lose_child(stage, worker)
    stage.open("all")

    assert worker.exit_code(60.0) == 0
    assert at_first[0] == "inline:"
    assert at_first[1].startswith(f"{elsewhere.as_uri()}/")
    assert [row.start_step for row in stage.attempts()] == [1, 2, 3, 4]
    assert stage.steps() == [1, 2, 3, 4]
    assert stage.events("checkpoint corrupt") == []
    assert urls(stage) == ["inline:", "inline:"]
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []  # retired, and deleted


def test_checkpoint_too_large_for_the_database_is_stored_after_a_change_of_store(postgres_stage):
    stage = postgres_stage
    stage.create("obedient:burdened")
    worker = stage.start()
    (error,) = eventually(lambda: stage.events("checkpoint failed"))

    stage.study.set(checkpoints=stage.folder / "elsewhere")
    lose_child(stage, worker)
    stage.await_trial(lambda row: row.checkpoint_step == 1)
    lose_child(stage, worker)
    stage.open("all")

    assert worker.exit_code(60.0) == 0
    assert "`studydb set NAME checkpoints=URL`" in error["error"]
    assert [row.start_step for row in stage.attempts()] == [1, 1, 2]
    assert stage.steps() == [1, 2]
