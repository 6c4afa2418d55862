"""A checkpoint that is too large for the database fails no trial, and is reported."""

from studydb.operations.overview import storage_problems


def test_trial_whose_checkpoints_are_too_large_completes_and_trouble_is_shown(postgres_stage):
    stage = postgres_stage
    stage.create("obedient:heavy")
    worker = stage.start()

    assert worker.exit_code(60.0) == 0
    assert stage.trial().reason == "COMPLETED"
    assert stage.steps() == [1, 2]
    assert "a checkpoint could not be stored: The checkpoint has 17.0 MiB" in worker.output()
    troubles = storage_problems(stage.study.database, stage.study.record)
    (error,) = [row.data["error"] for row in troubles if row.kind == "checkpoint failed"]
    assert "16 MiB" in error
