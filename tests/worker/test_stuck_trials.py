"""A trial that always dies at the same step is run three times, though ten losses are allowed."""

import pytest
from harness.turns import sqlite_alone

from studydb.domain.life.ending import LOSSES_AT_STEP

storage_url = sqlite_alone  # operations/test_losses_at_the_same_step.py tests both databases


@pytest.mark.nightly
def test_trial_is_not_run_again_after_three_deaths_at_the_same_step(stage):
    stage.create("misbehaving:dies_after_step_2")

    assert stage.run() == 3
    assert (stage.trial().state, stage.trial().reason) == ("ERROR", "LOST")
    attempts = stage.attempts()
    assert len(attempts) == LOSSES_AT_STEP
    assert attempts[-1].error_message == (
        "The process of the trial was killed by SIGKILL. This has ended 3 attempts in a row after "
        "step 2, so the trial is not run again. Perhaps its host was out of memory."
    )


@pytest.mark.nightly
def test_max_losses_of_a_study_replaces_the_limit_of_losses_at_the_same_step(stage):
    stage.create("misbehaving:dies_after_step_2", max_losses=3)

    assert stage.run() == 3
    assert len(stage.attempts()) == 4
    assert "in a row" not in stage.attempts()[-1].error_message
