"""Workers run ASHA by promotion: trials pause at rungs, and resume from their checkpoints."""

from collections import Counter

import pytest
from fleet.workers import eventually
from harness.arrange import rows

import studydb
from studydb.domain.life.states import State

TRIALS = 9
PROMOTION = studydb.ASHA(max_t=9, reduction_factor=3, type="promotion")


@pytest.fixture
def study(stage):
    return stage.create("curves:saved_curve", scheduler=PROMOTION, num_trials=TRIALS)


def trained(stage):
    """Count how often each step of each trial was trained; the keys are (trial's number, step)."""
    log = stage.folder / "trained"
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(tuple(map(int, line.split())) for line in lines)


def check_end(stage, study):
    """
    Check that the study has finished, and that each trial has one live result per step.

    Each trial has ended at step 9 or waits at step 1 or 3. The best trial has ended, and at least
    `TRIALS // 2` trials wait at step 1.

    Returns:
        The last step of each trial, by the trial's number.
    """
    assert study.status == "FINISHED"
    last = {}
    for trial in study.trials:
        assert trial.state in (State.PAUSED, State.TERMINATED), trial
        last[trial.number] = trial.summary.last_step
        assert (trial.summary.last_step == 9) == (trial.state is State.TERMINATED)
    assert set(last.values()) <= {1, 3, 9}
    assert len(last) == TRIALS
    assert last[0] == 9  # the best trial
    assert list(last.values()).count(1) >= TRIALS // 2
    live = [(row.number, row.step) for row in study.results_dataframe().itertuples()]
    assert sorted(live) == [
        (n, step) for n, end in sorted(last.items()) for step in range(1, end + 1)
    ]
    return last


@pytest.mark.slow
def test_promoted_trials_continue_from_their_checkpoints_and_train_no_step_twice(stage, study):
    workers = [stage.start(slots=2) for _ in range(2)]

    assert [worker.exit_code(60.0) for worker in workers] == [0, 0]

    last = check_end(stage, study)
    assert trained(stage) == {(n, step): 1 for n, end in last.items() for step in range(1, end + 1)}
    attempts = rows(
        study.database,
        "SELECT number, count(*) FROM attempt JOIN trial ON "
        "trial.id = trial_id GROUP BY number ORDER BY number",
    )
    assert attempts == [(n, {1: 1, 3: 2, 9: 3}[end]) for n, end in sorted(last.items())]


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_workers_that_are_killed_lose_no_promoted_trial(stage, study):
    for _ in range(3):
        worker, before = stage.start(slots=2), trained(stage).total()
        eventually(lambda before=before: trained(stage).total() > before + 2)
        worker.kill()

    assert stage.run(slots=2) == 0

    check_end(stage, study)
