"""
A study whose first trials fail alike pauses itself; workers, `study.run` and `ask` say why.

A worker ends if its own first trials all fail while trials of other workers complete.
"""

import time

import pytest
from fleet.workers import eventually
from harness.turns import sqlite_alone

import studydb
from studydb.domain.life.alike_failures import MAX_ALIKE
from studydb.worker.first_trials import FAILED_LIMIT

storage_url = sqlite_alone

SLOTS = 4
SOON_S = 1.0


def test_study_pauses_itself_if_all_its_trials_fail_and_the_worker_prints_the_cause(stage):
    stage.create("misbehaving:raises", num_trials=200)
    worker = stage.start(slots=SLOTS)

    assert worker.exit_code(60.0) == 3
    assert stage.study.counts.total <= MAX_ALIKE + SLOTS
    assert "has paused itself: 5 trials failed alike" in worker.output()
    assert "ValueError: the learning rate is cursed" in worker.output()
    assert "studydb resume staged" in worker.output()
    assert stage.study.progress.pause_reason is not None


@pytest.mark.slow
def test_waiting_worker_prints_the_cause_within_a_second_of_the_pause(stage):
    stage.create("misbehaving:raises", num_trials=200)
    worker = stage.start(slots=SLOTS, wait=True)

    eventually(lambda: stage.study.progress.pause_reason is not None)
    paused_s = time.monotonic()
    eventually(lambda: "has paused itself" in worker.output())

    assert time.monotonic() - paused_s < SOON_S


@pytest.mark.nightly
def test_resumed_study_runs_the_corrected_function(stage):
    stage.create("misbehaving:raises_until_corrected", num_trials=10)
    assert stage.run() == 3

    stage.open_gate("corrected")
    paused = stage.run()
    stage.study.resume()

    assert paused == 3
    assert stage.run() == 0
    assert stage.study.counts.terminated == 10 - MAX_ALIKE


@pytest.mark.nightly
def test_worker_with_the_option_wait_continues_when_the_study_is_resumed(stage):
    stage.create("misbehaving:raises_until_corrected", num_trials=10)
    worker = stage.start(wait=True)
    eventually(lambda: "has paused itself" in worker.output())
    stage.open_gate("corrected")

    stage.study.resume()

    eventually(lambda: stage.study.counts.terminated == 10 - MAX_ALIKE)


@pytest.mark.nightly
def test_study_run_raises_study_failed_if_the_study_pauses_itself_or_has_done_so(stage, capfd):
    study = stage.create("misbehaving:raises", num_trials=200)

    with pytest.raises(studydb.StudyFailed, match=r"paused itself.*cursed.*studydb show staged"):
        study.run(workers=2)
    began_s = time.monotonic()
    with pytest.raises(studydb.StudyFailed, match=r"paused itself"):
        study.run(workers=2)

    assert time.monotonic() - began_s < 5.0
    assert "failed: ValueError: the learning rate is cursed" in capfd.readouterr().err


@pytest.mark.slow
def test_study_with_guard_false_runs_all_trials_and_fails_if_none_completes(stage):
    study = stage.create("misbehaving:raises", num_trials=7, guard=False)

    assert stage.run() == 3
    assert study.counts.error == 7
    text = "No trial of study 'staged' has completed: 7 ended with an error"
    assert text in stage.fleet.output()
    assert "run the trials again (`studydb retry staged --errored`)" in stage.fleet.output()
    with pytest.raises(studydb.StudyFailed, match=r"7 ended with an error\. The last was trial 6"):
        study.run()


@pytest.mark.slow
def test_worker_ends_with_an_error_if_its_first_trials_fail_but_other_workers_succeed(
    stage, monkeypatch
):
    study = stage.create("misbehaving:raises_on_a_broken_host", num_trials=20)
    assert stage.run(max_trials=1) == 0

    monkeypatch.setenv("BROKEN_HOST", "1")
    broken = stage.start()

    assert broken.exit_code(60.0) == 1
    assert study.counts.error == FAILED_LIMIT
    assert "first 3 trials of this worker have all failed" in broken.output()
    assert study.status == "RUNNING"


@pytest.mark.slow
def test_worker_goes_on_after_failures_if_its_first_trial_has_completed(stage):
    study = stage.create("misbehaving:raises_unless_first", num_trials=8)

    assert stage.run() == 0
    assert (study.counts.terminated, study.counts.error) == (1, 7)


def test_ask_raises_study_failed_when_the_study_has_paused_itself(storage_url):
    study = studydb.create_study(
        "mine", None, space={"x": studydb.uniform(0, 1)}, metric="loss", mode="min",
        num_trials=50, storage=storage_url,
    )  # fmt: skip

    def loop():
        while (trial := study.ask()) is not None:
            trial.fail(ValueError("a typo"))

    with pytest.raises(studydb.StudyFailed, match=r"paused itself.*a typo"):
        loop()
    assert study.counts.total == MAX_ALIKE
    study.close()
