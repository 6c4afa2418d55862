"""A trial that dies at the same step each time is not run ten times; one that gets further is."""

from studydb.domain.life.ending import LOSSES_AT_STEP


def test_trial_that_dies_three_times_at_the_same_step_is_not_run_again(stage):
    stage.create("misbehaving:dies_at_a_step", space={"steps": 2, "more": 0})

    assert stage.run() == 3
    assert (stage.trial().state, stage.trial().reason) == ("ERROR", "LOST")
    attempts = stage.attempts()
    assert len(attempts) == LOSSES_AT_STEP
    assert attempts[-1].error_message == (
        "The process of the trial was killed by SIGKILL. It died 3 times in a row after step 2, "
        "and is not run again. Perhaps out of memory."
    )


def test_trial_that_gets_further_each_time_goes_on(stage):
    stage.create("misbehaving:dies_at_a_step", space={"steps": 1, "more": 1})

    assert stage.run() == 0
    assert stage.trial().reason == "COMPLETED"
    assert len(stage.attempts()) == LOSSES_AT_STEP + 1


def test_given_max_losses_replaces_the_limit_of_losses_at_the_same_step(stage):
    stage.create("misbehaving:dies_at_a_step", space={"steps": 2, "more": 0}, max_losses=3)

    assert stage.run() == 3
    assert len(stage.attempts()) == 4
    assert "in a row" not in stage.attempts()[-1].error_message
