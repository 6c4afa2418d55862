"""
`study.wait` returns a study's counts once the study is done.

It raises an error at its timeout, and for a study that has failed or was deleted.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import studydb
from studydb.domain.life.states import Status
from studydb.domain.records import Counts


@pytest.fixture
def study(storage_url):
    with closing(
        studydb.create_study(
            "waited",
            None,
            space={"x": studydb.uniform(0.0, 1.0)},
            metric="loss",
            mode="min",
            num_trials=2,
            storage=storage_url,
        )
    ) as study:
        yield study


def test_wait_returns_the_counts_when_another_handle_has_run_the_last_trial(storage_url, study):
    with (
        closing(studydb.load_study("waited", storage=storage_url)) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting = thread.submit(study.wait, 30.0)
        for _ in range(2):
            with other.ask() as trial:
                trial.report({"loss": 0.5})

        assert waiting.result(30) == Counts(terminated=2)


def test_wait_raises_timeout_error_with_the_studys_status_and_counts(study):
    trial = study.ask()

    with pytest.raises(TimeoutError, match=r"'waited' is not done after .* It is RUNNING, with 1"):
        study.wait(timeout_s=0.1)

    trial.release()


def test_wait_returns_for_a_stopped_study_only_when_no_trial_runs_any_more(study):
    trial = study.ask()
    study.stop()
    with pytest.raises(TimeoutError, match="STOPPED, with 1 RUNNING"):
        study.wait(timeout_s=0.0)

    trial.report({"loss": 0.5})
    trial.finish()

    assert study.wait() == Counts(terminated=1)


def test_wait_returns_for_a_paused_study_once_all_its_trials_have_ended(study):
    while (trial := study.ask()) is not None:
        trial.report({"loss": 0.5})
        trial.finish()
    study.pause()

    assert study.status is Status.PAUSED
    assert study.wait(timeout_s=0.0).terminated == study.record.num_trials
    assert study.ask(timeout=0.0) is None
    study.extend(num_trials=1)
    with pytest.raises(TimeoutError):
        study.wait(timeout_s=0.0)


def test_wait_does_not_return_for_a_paused_study_that_has_trials_to_make(study):
    study.pause()

    with pytest.raises(TimeoutError, match="PAUSED, with no trials"):
        study.wait(timeout_s=0.1)


def test_wait_raises_study_failed_if_the_study_is_over_and_all_trials_have_failed(study):
    for _ in range(2):
        study.ask().fail(ValueError("no data"))

    with pytest.raises(studydb.StudyFailed, match="no data"):
        study.wait()


def test_wait_for_a_deleted_study_raises_unknown_study(storage_url, study):
    studydb.delete_study("waited", storage=storage_url)

    with pytest.raises(studydb.UnknownStudy):
        study.wait()


def test_timeout_of_wait_is_a_number_of_seconds(study):
    with pytest.raises(studydb.InvalidSpec, match="timeout_s is '5'"):
        study.wait(timeout_s="5")
    with pytest.raises(studydb.InvalidSpec, match="timeout_s is nan"):
        study.wait(timeout_s=math.nan)
    with pytest.raises(TypeError, match=r"it takes timeout_s. Did you mean 'timeout_s'\?$"):
        study.wait(timeout=5)
