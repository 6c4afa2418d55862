"""Limits, retries, `fail_fast` and stop rules with real workers; tests kill some of the workers."""

import os
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from fleet.workers import eventually
from harness.arrange import rows

import studydb

SLOTS = 4


def n_results(stage):
    return rows(stage.study.database, "SELECT count(*) FROM result")[0][0]


NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
LIMITS = {
    "cost_limit": ("usd", 1500 if NIGHTLY else 80),
    "max_steps": 1500 if NIGHTLY else 80,
    "total_time_limit_s": 120.0 if NIGHTLY else 24.0,
    "time_limit_s": 30.0 if NIGHTLY else 8.0,
}
KILLS = 8 if NIGHTLY else 1


def amount(limit):
    return limit[1] if isinstance(limit, tuple) else limit


def spent(stage, name):
    """Return how much of a limit is spent; for `time_limit_s`, the seconds from start to stop."""
    if name == "time_limit_s":
        (started_at,), (stopped_at,) = (
            rows(stage.study.database, sql)[0]
            for sql in ("SELECT started_at FROM study", STOPPED_AT)
        )
        return seconds_between(started_at, stopped_at)
    column = {"cost_limit": "cost", "max_steps": "steps", "total_time_limit_s": "time_s"}[name]
    return rows(stage.study.database, f"SELECT sum({column}) FROM counter")[0][0]


STOPPED_AT = "SELECT at FROM event WHERE kind = 'study stopped'"


def seconds_between(first, second):
    return (as_datetime(second) - as_datetime(first)).total_seconds()


def as_datetime(value):
    """SQLite's times are texts in UTC without an offset."""
    return datetime.fromisoformat(value + "+00:00") if isinstance(value, str) else value


def seen_stopped(study):
    """
    Wait until the study's stop is committed; return a time after this COMMIT.

    The stop's event has the time at which the stop's transaction began. That time is too early: a
    flush that began after it, but before the COMMIT, does not see the stop.
    """
    eventually(lambda: study.status == "STOPPED", 120.0)
    return datetime.now(UTC)


def flushes_since(stage, time):
    """Count each trial's flushes that began after a time; leave out trials without such a flush."""
    flushes = rows(stage.study.database, "SELECT DISTINCT trial_id, reported_at FROM result")
    return Counter(trial for trial, at in flushes if seconds_between(time, at) > 0)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.row("A14")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LIMITS)
def test_limit_is_exceeded_by_at_most_one_flush_per_running_trial_although_workers_are_killed(
    stage, name
):
    limit = amount(LIMITS[name])
    study = stage.create("spending:paid", num_trials=None, **{name: LIMITS[name]})
    slots = 1 if NIGHTLY else SLOTS
    workers = [stage.start(slots=slots) for _ in range(2 * SLOTS // slots)]
    eventually(lambda: n_results(stage) > 2 * SLOTS)
    for number in range(KILLS):
        if NIGHTLY:
            time.sleep(1.5)
        workers.pop(number % len(workers)).end()
        workers.append(stage.start(slots=slots))

    stopped_at = seen_stopped(study)
    codes = [each.exit_code(120.0) for each in workers]

    used, late = spent(stage, name), flushes_since(stage, stopped_at)
    print(  # noqa: T201  for pytest -rP
        f"{name}: {used} of {limit}; {KILLS} kills; {len(late)} trials flushed after the stop, "
        f"at most {max(late.values(), default=0)} times"
    )
    assert codes == [0] * len(workers)
    assert study.status == "STOPPED"
    assert study.progress.limit_reached.startswith(f"{name} is reached")
    assert f"the study has stopped itself: its {name} is reached" in workers[-1].output()
    # A trial that was recovered just before the stop may still be PENDING.
    ends = {(trial.state, trial.reason) for trial in study.trials} - {("PENDING", None)}
    assert ends == {("TERMINATED", "BUDGET_SPENT")}
    assert set(late.values()) <= {1}
    assert len(late) <= 2 * SLOTS
    assert limit <= used <= limit + 2 * SLOTS * (1.0 if name in ONE_PER_FLUSH else LONGEST_FLUSH_S)


ONE_PER_FLUSH = ("cost_limit", "max_steps")
"""Limits that count usd or steps. Each flush of `spending:paid` spends 1 usd and 1 step."""

LONGEST_FLUSH_S = 2.0
"""More than the time between two flushes of a trial, also on a busy host."""


@pytest.mark.nightly
def test_study_that_reached_its_limit_goes_on_after_set_and_resume(sqlite_stage):
    stage = sqlite_stage
    study = stage.create("spending:paid", num_trials=1, max_steps=5)
    assert stage.run() == 0
    assert "max_steps is reached (5 of 5 steps)" in stage.command("status", "staged")
    assert stage.run() == 0  # no trial starts
    stage.command("set", "staged", "max_steps=9")
    stage.command("resume", "staged")
    study.extend(num_trials=1)

    assert stage.run() == 0

    assert n_results(stage) == 9
    assert study.counts.terminated == 2


@pytest.mark.nightly
@pytest.mark.row("A9")
def test_time_limit_of_a_trial_includes_the_time_before_a_kill_of_its_worker(stage):
    study = stage.create("obedient:unhurried", trial_time_limit_s=3.0)
    worker = stage.start()
    stage.await_trial(lambda row: (row.running_s or 0) > 1.0)
    worker.end()

    assert stage.run() == 0

    trial = stage.trial()
    assert (trial.state, trial.reason) == ("TERMINATED", "TIMED_OUT")
    assert len(stage.attempts()) == 2
    assert 3.0 <= trial.running_s < 6.0
    assert study.trials[0].checkpoint is not None  # saved within the grace


@pytest.mark.nightly
def test_trial_that_does_not_report_is_killed_at_its_time_limit(sqlite_stage):
    sqlite_stage.create("obedient:ignores_sigterm", trial_time_limit_s="1s")

    assert sqlite_stage.run(grace=0.5) == 0

    assert sqlite_stage.trial().reason == "TIMED_OUT"


@pytest.mark.nightly
def test_study_stops_at_its_time_limit_while_its_trials_run(sqlite_stage):
    study = sqlite_stage.create("obedient:unhurried", num_trials=None, time_limit_s=2)

    assert sqlite_stage.run(slots=2) == 0

    assert study.status == "STOPPED"
    assert {trial.reason for trial in study.trials} == {"BUDGET_SPENT"}


@pytest.mark.nightly
@pytest.mark.row("A15")
def test_fail_fast_pauses_the_study_at_the_first_failure_and_resume_continues_the_other_trials(
    sqlite_stage,
):
    stage = sqlite_stage
    study = stage.create("spending:second_fails_until_corrected", num_trials=3, fail_fast=True)
    paused = stage.start(slots=2)

    assert paused.exit_code(60.0) == 3
    assert "fail_fast is set, and trial 1 has failed: ValueError: a typo" in paused.output()
    assert (stage.trial(0).state, stage.trial(1).state) == ("PAUSED", "ERROR")
    assert study.trials[0].checkpoint is not None
    with pytest.raises(studydb.StudyFailed, match="fail_fast"):
        study.run()

    stage.open_gate("corrected")
    stage.open_gate("all")
    study.resume()

    assert stage.run() == 0
    assert [stage.trial(number).state for number in (0, 2)] == ["TERMINATED"] * 2
    assert len(stage.attempts(0)) == 2


@pytest.mark.slow
@pytest.mark.row("A9")
def test_plateau_includes_the_values_before_a_kill_of_the_worker(stage):
    stage.create("spending:flattens", stop=[studydb.Plateau("loss", std=0.01)])
    for step in (1, 2, 3):
        stage.open_gate(step)
    worker = stage.start()
    stage.await_trial(lambda row: row.last_step == 4)
    worker.end()
    stage.open_gate("all")

    assert stage.run() == 0

    assert stage.trial().reason == "RULE_STOPPED"
    assert stage.steps() == [1, 2, 3, 4, 5]
    assert "step 5 met the rule Plateau(metric=loss, std=0.01)" in stage.command(
        "show", "staged", "0"
    )


@pytest.mark.row("B8")
def test_stop_rule_for_a_missing_metric_warns_once_and_the_trials_go_on(sqlite_stage):
    stage = sqlite_stage
    study = stage.create("obedient:one_step", num_trials=3, stop={"accuracy": 0.9})
    worker = stage.start()

    assert worker.exit_code(60.0) == 0
    assert study.counts.terminated == 3
    assert worker.output().count("compares 'accuracy'") == 1
    assert "stop rule not compared" in stage.command("status", "staged")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retry", "state", "n_attempts"),
    [
        (studydb.Retry(uncounted=[OSError]), "TERMINATED", 2),
        ("Retry(never=[ConnectionError])", "ERROR", 1),
    ],
)
def test_base_classes_of_the_exception_decide_about_the_retry(
    sqlite_stage, retry, state, n_attempts
):
    max_failures = 0 if state == "TERMINATED" else 5
    sqlite_stage.create("spending:fails_once", retry=retry, max_failures=max_failures)

    sqlite_stage.run()

    assert sqlite_stage.trial().state == state
    assert len(sqlite_stage.attempts()) == n_attempts
    assert sqlite_stage.attempts()[0].error_type == "spending.NetworkError"
