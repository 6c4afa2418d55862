"""Warnings about trainables that never read their config; the error if a parser calls sys.exit."""

import json

import pytest
from harness.turns import sqlite_alone

storage_url = sqlite_alone

UNREAD = "parsing:main never reads its config"


@pytest.mark.parametrize("slots", [1, 2])
def test_worker_warns_once_that_a_trainable_never_reads_its_config(stage, slots):
    stage.create("parsing:main", num_trials=3)
    worker = stage.start(slots=slots)

    assert worker.exit_code(60.0) == 0
    assert worker.output().count(UNREAD) == 1
    (event,) = stage.events("config not read")
    assert event["error"].startswith(UNREAD)
    assert f"config not read: {UNREAD}" in stage.command("status", "staged")
    (trouble,) = json.loads(stage.command("status", "staged", "--format=json"))["problems"]
    assert trouble["kind"] == "config not read"
    assert "argv ['studydb worker']" in stage.command("logs", "staged", "0")


def test_reading_the_config_attribute_of_the_trial_counts_as_reading_the_config(stage):
    stage.create("parsing:reads_it_elsewhere")
    worker = stage.start()

    assert worker.exit_code(60.0) == 0
    assert "COMPLETED at step 1, loss 0.25 (best 0.25, trial 0)" in worker.output()
    assert "never reads" not in worker.output()
    assert stage.events("config not read") == []


def test_error_points_to_the_config_if_the_trainable_parses_sys_argv(stage):
    stage.create("parsing:required")

    stage.run()

    (attempt,) = stage.attempts()
    assert attempt.error_message == (
        "The trainable called sys.exit(2). Return from it, or raise an error. If it parses "
        "sys.argv: a trial gets no arguments there; use its config."
    )
    assert "usage: studydb worker [-h] --lr LR" in stage.command("logs", "staged", "0")


@pytest.mark.nightly
def test_study_run_prints_the_warning_about_an_unread_config(stage, capfd):
    study = stage.create("parsing:main", num_trials=1)

    study.run(workers=1)

    assert f"Problem: trial 0: config not read: {UNREAD}" in capfd.readouterr().err
