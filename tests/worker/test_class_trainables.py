"""Trials that run a class: the order of the calls, the checkpoints, and how the trials end."""

import signal

import pytest
from harness.turns import sqlite_alone

storage_url = sqlite_alone


def calls(stage):
    return (stage.folder / "calls").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.row("D6")
@pytest.mark.parametrize(
    ("name", "saves"),
    [("Counting", ["save 1", "save 2", "save 3", "save 4"]), ("InFiles", ["save 3", "save 4"])],
)
def test_methods_are_called_in_order_until_a_step_says_done(stage, name, saves):
    stage.create(f"classes:{name}")

    assert stage.run() == 0

    assert calls(stage) == ["setup", *saves, "cleanup"]
    assert (stage.trial().state, stage.trial().reason) == ("TERMINATED", "COMPLETED")
    assert stage.steps() == [1, 2, 3, 4]


@pytest.mark.slow
def test_class_whose_step_returns_none_saves_its_last_step(stage):
    stage.create("classes:EndsByNone")

    assert stage.run() == 0

    assert calls(stage) == ["setup", "save 3", "save 4", "cleanup"]
    assert (stage.trial().reason, stage.trial().checkpoint_step) == ("COMPLETED", 4)
    assert stage.steps() == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Counting", "InFiles"])
def test_class_whose_worker_is_killed_goes_on_from_its_checkpoint(stage, name):
    stage.create(f"classes:{name}", space={"gate_after": 3, "steps": 5})
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    worker.end()
    stage.open_gate("all")

    assert stage.run() == 0

    resumed = calls(stage)[calls(stage).index("setup", 1) :]
    assert resumed[:2] == ["setup", "load 3"]
    assert resumed[-2:] == ["save 5", "cleanup"]
    assert stage.steps() == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_class_killed_after_step_returned_none_is_restored_at_its_last_step_and_completed(
    stage,
):
    stage.create("classes:EndsByNoneAndIsKilled")

    assert stage.run() == 0

    assert [row.reason for row in stage.attempts()] == ["LOST", "COMPLETED"]
    assert stage.steps() == [1, 2, 3, 4]
    assert calls(stage)[-3:] == ["setup", "load 4", "cleanup"]


def expect_completed_in_one_attempt(stage):
    (attempt,) = stage.attempts()
    assert attempt.verdict_by == "trial"
    assert (stage.trial().state, stage.trial().reason) == ("TERMINATED", "COMPLETED")
    assert stage.steps() == [1, 2, 3]
    assert calls(stage).count("setup") == 1
    assert "the report at step 3 said done=True" in stage.command("show", "staged", "0")


@pytest.mark.nightly
def test_class_that_is_killed_after_a_step_that_said_done_is_completed(stage):
    stage.create("classes:KilledAtItsEnd", space={"steps": 3})

    assert stage.run() == 0

    expect_completed_in_one_attempt(stage)


@pytest.mark.nightly
def test_class_whose_worker_is_killed_after_a_step_that_said_done_is_completed(stage):
    stage.create("classes:WaitsAtItsEnd", space={"steps": 3})
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    assert "STOP: COMPLETED" in stage.command("show", "staged", "0")

    worker.end()

    assert stage.run() == 0
    assert [row.reason for row in stage.attempts()] == ["LOST"]
    expect_completed_in_one_attempt(stage)


@pytest.mark.nightly
def test_class_saves_when_its_worker_is_signalled(stage):
    stage.create("classes:InFiles", space={"gate_after": 4, "steps": 9})
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 3)

    worker.send(signal.SIGTERM)
    stage.open_gate("all")

    assert worker.exit_code() == 143
    released = stage.expect_released()
    assert released.checkpoint_step >= 4
    assert calls(stage)[-1] == "cleanup"
    assert stage.run() == 0
    assert stage.steps() == list(range(1, 10))


@pytest.mark.slow
def test_stop_rule_ends_a_class_after_a_last_checkpoint(stage):
    stage.create("classes:InFiles", space={"steps": 9}, stop=["training_iteration>=5"])

    assert stage.run() == 0

    assert calls(stage) == ["setup", "save 3", "save 5", "cleanup"]
    assert stage.trial().reason == "RULE_STOPPED"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Failing", "step failed"),
        ("Wrong", "step() returned a float"),
        ("Silent", "without reporting 'loss'"),
        ("SavesTwice", "returned a dict, but also left 'weights' in the directory"),
    ],
)
def test_error_of_a_class_fails_its_trial_after_the_cleanup(stage, name, words):
    stage.create(f"classes:{name}")

    stage.run()

    (attempt,) = stage.attempts()
    assert stage.trial().state == "ERROR"
    assert words in attempt.error_message
    assert calls(stage)[-1] == "cleanup"
