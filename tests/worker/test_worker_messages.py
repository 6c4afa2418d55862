"""The lines that a worker prints, and the step that a job gives as the last step of its trial."""

import pytest

from studydb.domain.scheduling import last_step
from studydb.schedulers import ASHA, FIFO


@pytest.mark.parametrize("options", [{}, {"keep": "quota=1"}])
def test_checkpoints_that_the_store_or_the_quota_refuses_are_reported_once_and_training_continues(
    sqlite_stage, options
):
    folder = sqlite_stage.folder / ("kept" if options else "file/below")
    sqlite_stage.create("obedient:gated", checkpoints=folder, **options)
    (sqlite_stage.folder / "file").touch()  # after `create`, which would refuse the folder
    sqlite_stage.open_gate("all")

    worker = sqlite_stage.start()

    assert worker.exit_code() == 0
    assert sqlite_stage.trial().reason == "COMPLETED"
    assert sqlite_stage.steps() == [1, 2, 3, 4]
    assert worker.output().count("a checkpoint could not be stored") == 1
    assert len(sqlite_stage.events("checkpoint failed")) == 1


@pytest.mark.parametrize(
    ("trainable", "line"),
    [
        ("misbehaving:raises", "FAILED at step 0: ValueError: the learning rate"),
        ("misbehaving:returns_nothing", "FAILED at step 0: The trainable ended without reporting"),
    ],
)
def test_line_about_a_failed_trial_names_the_error(sqlite_stage, trainable, line):
    sqlite_stage.create(trainable)
    worker = sqlite_stage.start()

    assert worker.exit_code() == 3
    assert line in worker.output()
    assert f"Details: `studydb show {sqlite_stage.study.name} 0`" in worker.output()


@pytest.mark.parametrize(
    ("scheduler", "last"),
    [
        (ASHA(max_t=27), 27),
        (FIFO(), None),
        (ASHA(max_t=10**30, reduction_factor=10**30), None),  # no message can hold this number
    ],
)
def test_job_names_the_step_at_which_the_scheduler_completes_a_trial(scheduler, last):
    assert last_step(scheduler) == last
