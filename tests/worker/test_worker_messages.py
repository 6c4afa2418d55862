"""What a worker says to the terminal that it runs in."""

import pytest
from harness import arrange


def test_failing_checkpoint_store_is_reported_once_and_training_continues(sqlite_stage):
    stage = sqlite_stage
    (stage.folder / "file").touch()
    stage.create("obedient:gated", checkpoints=stage.folder / "file" / "below")
    stage.open("all")

    worker = stage.start()

    assert worker.exit_code() == 0
    assert stage.trial().reason == "COMPLETED"
    assert stage.steps() == [1, 2, 3, 4]
    assert worker.output().count("a checkpoint could not be stored") == 1
    ((times,),) = arrange.rows(
        stage.study.database, "SELECT count(*) FROM event WHERE kind = 'checkpoint failed'"
    )
    assert times == 1


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        ("misbehaving:raises", "FAILED at step 0: ValueError: the learning rate"),
        ("misbehaving:returns_nothing", "FAILED at step 0: The trainable ended without reporting"),
    ],
)
def test_line_of_a_failed_trial_names_the_users_exception(sqlite_stage, trainable, words):
    stage = sqlite_stage
    stage.create(trainable)
    worker = stage.start()

    assert worker.exit_code() == 3
    assert words in worker.output()
    assert f"The traceback: `studydb show {stage.study.name} 0`" in worker.output()
