"""
The stable views (v_study, v_trial, v_result, …) show what the tables hold.

`v_result` has only live results, and `v_checkpoint` only checkpoints that were not removed.
"""

import json
import math
import re
from pathlib import Path

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    live_results,
    moment,
    new_request,
    new_study,
    rows,
    states_of,
)

from studydb.db.types import decode_json
from studydb.domain.failures import Failure
from studydb.domain.life.states import Reason, State, Status
from studydb.operations import control
from studydb.operations.reads import list_trials
from studydb.operations.study_progress import read_progress

ROOT = Path(__file__).parents[2]

COLUMNS = {
    "v_study": "study status metric mode num_trials max_concurrent pending running paused "
    "terminated error created_at",
    "v_trial": "study number state reason params value best_value best_step last_step attempt "
    "failures losses started_at ended_at duration_s name tags changed parent invalidated_at "
    "resources",
    "v_result": "study number step value metrics attempt reported_at",
    "v_attempt": "study number attempt reason start_step host pid worker started_at ended_at "
    "duration_s error_type error_message start start_s",
    "v_checkpoint": "study number attempt step kind url size_bytes digest created_at",
    "v_worker": "worker study host pid slots running request version started_at seen_at ended_at "
    "resources uses tags reserved_for",
}


def view(database, name, order="1, 2"):
    with database.begin(write=False) as txn:
        names, found = txn.raw(f"SELECT * FROM {name} ORDER BY {order}")
    return [dict(zip(names, row, strict=True)) for row in found]


def as_json(value):
    """Decode a JSON value of a row; SQLite returns it as text."""
    return decode_json(json.loads(value) if isinstance(value, str) else value)


@pytest.fixture
def study(database, clock):
    """Five trials (2 PENDING, 1 RUNNING, 2 TERMINATED); the first trial has two attempts."""
    study = new_study(database, name="views", max_failures=2)
    worker = SimulatedWorker(database, study)

    run = worker.ask()
    run.report(0.9, 0.8, math.nan, acc=math.inf, tag="NaN")
    clock.advance(10)
    run.save(run.checkpoint(step=2))
    run.finish(outcome=Reason.PREEMPTED)
    clock.advance(100)
    run = worker.claim()
    run.report(0.7)
    clock.advance(5)
    run.finish(outcome=Reason.FAILED, failure=Failure("ValueError", "no"))

    worker.ask().finish(math.inf, 0.2, -math.inf)
    worker.ask().report(math.nan)
    worker.ask().finish()
    enqueued(database, study, lr=0.5)
    return study


@pytest.mark.parametrize("name", COLUMNS)
def test_view_has_the_promised_columns(database, name):
    with database.begin(write=False) as txn:
        names, _ = txn.raw(f"SELECT * FROM {name}")

    assert names == COLUMNS[name].split()


@pytest.mark.row("C7")
def test_v_trial_shows_each_trial_as_list_trials_does(database, study):
    found = view(database, "v_trial")

    trials = list_trials(database, study)
    assert [row["number"] for row in found] == [trial.number for trial in trials]
    for row, trial in zip(found, trials, strict=True):
        summary = trial.summary
        assert row["study"] == "views"
        assert (row["state"], row["reason"]) == (trial.state, trial.reason)
        assert as_json(row["params"]) == trial.params
        assert number(row["value"]) == number(trial.value)
        assert number(row["best_value"]) == number(trial.best_value)
        assert (row["best_step"], row["last_step"]) == (summary.best_step, summary.last_step)
        for name in ("attempt", "failures", "losses"):
            assert row[name] == getattr(trial, name)
        assert at(row["started_at"]) == at(trial.started_at)
        assert at(row["ended_at"]) == at(trial.ended_at)


def number(value):
    """Return a value as text, so that NaN equals NaN. SQLite returns NaN and infinities as text."""
    return None if value is None else str(float(value))


def at(value):
    return None if value is None else moment(str(value)[:19])


def test_duration_of_a_trial_is_the_sum_of_the_durations_of_its_attempts(database, study):
    durations = {row["number"]: row["duration_s"] for row in view(database, "v_trial")}

    assert durations[0] == pytest.approx(10 + 5, abs=1e-3)
    assert durations[1] == pytest.approx(0, abs=1e-3)
    assert durations[4] is None


@pytest.mark.row("B14")
def test_v_result_shows_exactly_the_live_results(database, study):
    found = view(database, "v_result", order="number, step")

    expected = [
        (trial.number, result)
        for trial in list_trials(database, study)
        for result in live_results(database, study, trial.number)
    ]
    for row, (trial_number, result) in zip(found, expected, strict=True):
        assert (row["number"], row["step"]) == (trial_number, result.step)
        metrics = as_json(row["metrics"])
        assert number(row["value"]) == number(result.value) == number(metrics.pop("loss"))
        assert metrics == result.metrics
    first = [(row["step"], row["attempt"]) for row in found if row["number"] == 0]
    assert first == [(1, 1), (2, 1), (3, 2)]


def test_metrics_column_has_the_study_metric_even_if_nothing_else_was_reported(database, study):
    (row,) = [row for row in view(database, "v_result") if row["number"] == 2]

    assert math.isnan(as_json(row["metrics"])["loss"])


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e300, -5e-324, 123456789.123456789, 0.0, 1.0, -2.5])
def test_value_in_the_metrics_column_has_all_its_digits(database, value):
    SimulatedWorker(database, new_study(database)).ask().report(value)

    (row,) = view(database, "v_result")
    assert float(as_json(row["metrics"])["loss"]) == row["value"] == value


@pytest.mark.parametrize("metric", ["val/loss", "a.b", "with space", "ü", "$x", "[0]", "it's"])
def test_metric_of_any_name_is_shown(database, metric):
    SimulatedWorker(database, new_study(database, metric=metric)).ask().report(0.5, acc=1)

    (row,) = view(database, "v_result")
    assert as_json(row["metrics"]) == {metric: 0.5, "acc": 1}


def test_every_column_of_the_stable_views_is_documented():
    page = (ROOT / "docs" / "views.md").read_text()
    documented = {}
    for part in page.split("\n**")[1:]:
        name, _, text = part.partition("**")
        rows = re.findall(r"^\| (`.*?) \|", text.partition("\n## ")[0], re.MULTILINE)
        documented[name] = [column for row in rows for column in re.findall(r"`(\w+)`", row)]

    assert documented.keys() == COLUMNS.keys()
    for name, columns in COLUMNS.items():
        assert sorted(documented[name]) == sorted(columns.split()), name


def test_documented_query_leaves_out_values_that_are_not_finite(database):
    run = SimulatedWorker(database, new_study(database, name="digits")).ask()
    for value in (0.25, float("nan"), float("inf"), float("-inf"), 0.75):
        run.report(value)
    (query,) = re.findall(
        r"```sql\n(.*?);\n```", (ROOT / "docs" / "views.md").read_text(), re.DOTALL
    )

    with database.begin(write=False) as txn:
        assert [tuple(row) for row in txn.raw(query)[1]] == [(0.5, 0.75)]


def test_v_study_shows_counts_status_objective_and_budget(database, study):
    row = next(row for row in view(database, "v_study") if row["study"] == "views")

    counts = read_progress(database, study).counts
    assert {state: row[state.lower()] for state in State} == {
        state: states_of(database, study).count(state) for state in State
    }
    assert (row["pending"], row["running"]) == (counts.pending, counts.running)
    shown = (row["status"], row["metric"], row["mode"], row["num_trials"])
    assert shown == ("RUNNING", "loss", "min", 10)


def test_v_study_and_read_progress_show_the_same_status_throughout_a_study(database):
    study = new_study(database, num_trials=1)
    worker = SimulatedWorker(database, study)

    def both():
        return view(database, "v_study")[0]["status"], read_progress(database, study).status

    seen = [both()]
    run = worker.ask()
    seen.append(both())
    for status in (Status.PAUSED, Status.RUNNING):
        control.set_status(database, study, status, new_request())
        seen.append(both())
    run.finish()
    seen.append(both())
    control.set_status(database, study, Status.STOPPED, new_request())
    seen.append(both())

    statuses = ["RUNNING", "RUNNING", "PAUSED", "RUNNING", "FINISHED", "STOPPED"]
    assert seen == [(status, status) for status in statuses]


@pytest.mark.row("B5")
def test_v_attempt_shows_process_and_first_step_of_an_attempt_and_how_it_ended(database, study):
    found = [row for row in view(database, "v_attempt", "number, attempt") if row["number"] == 0]

    names = ("attempt", "reason", "start_step", "error_type", "error_message")
    assert [tuple(row[name] for name in names) for row in found] == [
        (1, "PREEMPTED", 1, None, None),
        (2, "FAILED", 3, "ValueError", "no"),
    ]
    assert {(row["host"], row["pid"]) for row in found} == {("gpu1", 1)}
    assert [row["duration_s"] for row in found] == pytest.approx([10, 5], abs=1e-3)


def test_v_checkpoint_shows_restorable_checkpoints(database):
    run = SimulatedWorker(database, new_study(database)).ask()
    for step in (1, 2, 3):
        run.save(run.checkpoint(step=step))

    found = view(database, "v_checkpoint", "number, step")
    assert [(row["number"], row["step"]) for row in found] == [(0, 2), (0, 3)]


@pytest.mark.row("C7")
def test_v_worker_counts_running_trials(database, study):
    (row,) = view(database, "v_worker")

    assert (row["study"], row["running"], row["ended_at"]) == ("views", 1, None)
    assert rows(database, "SELECT count(*) FROM trial WHERE state = 'RUNNING'") == [(1,)]
