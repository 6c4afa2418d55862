"""The warning about a trainable that never reads its config: by its worker, `status` and `run`."""

import json
import os
import subprocess
import sys

import pytest
from fleet.workers import TRAINABLES

UNREAD = "parsing:main never reads its config"


@pytest.mark.parametrize("slots", [1, 2])
def test_worker_warns_once_that_a_trainable_never_reads_its_config(stage, slots):
    stage.create("parsing:main", num_trials=3)
    worker = stage.start(slots=slots)

    assert worker.exit_code(60.0) == 0

    assert worker.output().count(UNREAD) == 1
    assert [event["error"].partition(",")[0] for event in stage.events("config not read")] == [
        UNREAD
    ]
    shown = studydb("status", "staged", storage=stage.storage)
    (trouble,) = json.loads(studydb("status", "staged", "--format=json", storage=stage.storage))[
        "troubles"
    ]
    assert f"config not read: {UNREAD}" in shown
    assert trouble["kind"] == "config not read"
    logs = studydb("logs", "staged", "0", storage=stage.storage)
    assert "argv ['studydb worker']" in logs


def test_reading_trial_config_counts_as_reading_the_config(stage):
    stage.create("parsing:reads_it_elsewhere")
    worker = stage.start()

    assert worker.exit_code(60.0) == 0

    assert "COMPLETED at step 1, loss 0.25 (best 0.25, trial 0)" in worker.output()
    assert "never reads" not in worker.output()
    assert stage.events("config not read") == []


def test_error_of_a_trainable_that_requires_arguments_points_to_its_config(sqlite_stage):
    stage = sqlite_stage
    stage.create("parsing:required")

    stage.run()

    (attempt,) = stage.attempts()
    assert attempt.error_message == (
        "The trainable called sys.exit(2). Return from it, or raise an error. If it parses "
        "sys.argv: a trial gets no arguments there; use its config."
    )
    logs = studydb("logs", "staged", "0", storage=stage.storage)
    assert "usage: studydb worker [-h] --lr LR" in logs


def test_study_run_prints_the_warning_about_an_unread_config(stage):
    stage.create("parsing:main", num_trials=1)
    script = "import studydb, sys; studydb.load_study('staged', storage=sys.argv[1]).run(workers=1)"

    ran = subprocess.run(
        [sys.executable, "-c", script, stage.storage],
        cwd=TRAINABLES,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert f"Problem: trial 0: config not read: {UNREAD}" in ran.stderr


def studydb(*arguments, storage):
    ran = subprocess.run(
        [sys.executable, "-m", "studydb", *arguments],
        env={**os.environ, "STUDYDB_STORAGE": storage},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout + ran.stderr
