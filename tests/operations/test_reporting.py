"""
A batch is stored once, with its decision. Results after the result that meets a rule are dropped.

The stored values determine the trials' ranks and summaries.
"""

import math

import pytest
from harness.arrange import (
    SimulatedWorker,
    live_results,
    new_study,
    results,
    rows,
    unchanged_rows,
)

from studydb.db.schema import trial
from studydb.domain.errors import NoResults
from studydb.domain.life.decisions import Action, Answer, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Mode, Reason, State
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch
from studydb.operations.reads import best_trials, list_trials
from studydb.schedulers import ASHA

BY_RULE = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)


@pytest.fixture
def ruled_run(database):
    """An attempt of a study that stops trials whose loss is 0.5 or more."""
    return SimulatedWorker(database, new_study(database, rules=read_rules({"loss": 0.5}))).take()


def steps(database, run):
    return [result.step for result in live_results(database, run.worker.study, run.lease.number)]


def test_batch_is_stored_in_one_flush(database, run):
    answer = run.report(0.9, 0.8, 0.7)

    assert answer == Answer(None, None)
    assert live_results(database, run.worker.study, 0) == list(results(0.9, 0.8, 0.7))
    assert rows(database, "SELECT flush_no FROM trial") == [(1,)]


def test_results_keep_metrics_and_times(database, run):
    metrics = {"acc": 0.5, "layers": [1, 2], "tag": "a", "deep": None, "ok": True, "n": 2**60}

    run.send(Batch(1, (Result(1, 0.25, metrics, 1.5),)))

    assert live_results(database, run.worker.study, 0) == [Result(1, 0.25, metrics, 1.5)]
    assert rows(database, "SELECT time_total_s FROM trial") == [(1.5,)]


def test_report_renews_the_lease(database, clock, run):
    before = rows(database, "SELECT lease_expires_at FROM trial")

    clock.advance(30)
    run.report(0.5)

    assert rows(database, "SELECT lease_expires_at FROM trial") > before


def test_batch_with_an_older_flush_number_changes_nothing(database, run):
    run.report(0.9)
    run.report(0.8)

    with unchanged_rows(database):
        assert run.send(Batch(1, results(0.9))) == Answer(None, None)


@pytest.mark.parametrize(
    ("stop", "values", "kept"),
    [
        ({"training_iteration": 2}, (0.9, 0.8, 0.7), 2),
        (["loss<0.5"], (0.9, 0.4, 0.3, 0.2), 2),
        (["acc>=1", "loss<0.5"], (0.9, 0.8, 0.4, 0.3), 3),
        (["acc>=0.5"], (0.9,), 1),
    ],
)
def test_batch_is_cut_after_the_first_result_that_meets_a_rule(database, stop, values, kept):
    study = new_study(database, rules=read_rules(stop))
    run = SimulatedWorker(database, study).take()

    answer = run.report(*values, acc=0.7)

    assert answer.verdict == BY_RULE
    assert steps(database, run) == list(range(1, kept + 1))
    assert run.trial().summary.last_value == values[kept - 1]


@pytest.mark.row("A8")
def test_rule_decides_before_the_scheduler(database):
    study = new_study(database, rules=read_rules({"loss": 0.5}), scheduler=ASHA(max_t=1))
    run = SimulatedWorker(database, study).take()

    assert run.report(0.9).verdict == BY_RULE


def test_report_after_a_verdict_changes_nothing(database, ruled_run):
    ruled_run.report(0.9)

    with unchanged_rows(database):
        assert ruled_run.report(0.1).verdict == BY_RULE

    assert ruled_run.trial().state is State.RUNNING
    assert ruled_run.trial().verdict == BY_RULE


def test_finish_carries_out_the_verdict_and_drops_later_results(database, ruled_run):
    ruled_run.report(0.9)

    ruled_run.finish(0.1)

    trial = ruled_run.trial()
    assert (trial.state, trial.reason) == (State.TERMINATED, Reason.RULE_STOPPED)
    assert steps(database, ruled_run) == [1]


def test_finish_cuts_its_batch_after_the_result_that_meets_a_rule(database, ruled_run):
    assert ruled_run.finish(0.1, 0.9, 0.2).reason is Reason.RULE_STOPPED
    assert steps(database, ruled_run) == [1, 2]


@pytest.mark.row("D4")
def test_finish_does_not_store_a_batch_that_a_report_has_stored(database, run):
    run.report(0.5)
    run.flush_no, run.after_step = 0, 0  # so that `finish` sends the same batch

    run.finish(0.5)

    assert steps(database, run) == [1]
    assert run.trial().summary.n_results == 1


# --- NaN, infinities, and texts that look like numbers


ODD = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]


def is_equal(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("value", ODD)
def test_odd_value_is_read_as_it_was_stored(database, run, value):
    """The sign of a zero may be lost: PostgreSQL's jsonb and SQLite's columns have no -0.0."""
    run.send(Batch(1, (Result(1, value, {"again": value, "deep": [value, {"er": value}]}, 1.0),)))

    (found,) = live_results(database, run.worker.study, 0)
    trial = run.trial()
    again = found.metrics
    for other in (found.value, again["again"], again["deep"][0], again["deep"][1]["er"]):
        assert is_equal(float(other), value)
    assert is_equal(trial.value, value)
    assert isinstance(found.value, float)


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "\\NaN", "\\\\NaN", "nan", "a\nb"]
)
def test_texts_that_look_like_numbers_or_contain_escapes_stay_texts(database, run, text):
    run.send(Batch(1, (Result(1, 0.5, {"tag": text, "tags": [text]}, 1.0),)))

    (found,) = live_results(database, run.worker.study, 0)
    assert found.metrics == {"tag": text, "tags": [text]}


@pytest.mark.parametrize("mode", Mode)
def test_nan_is_not_ranked_and_the_worst_infinity_is_ranked_last(database, mode):
    study = new_study(database, mode=mode)
    worst = math.inf if mode is Mode.MIN else -math.inf
    worker = SimulatedWorker(database, study)
    for values in [(math.nan,), (math.nan, worst), (5.0, math.nan), (-worst, 5.0), (4.0,)]:
        worker.take().finish(*values)

    found = best_trials(database, study, limit=9)

    ranked = [(trial.number, trial.best_value) for trial in found]
    middle = [(4, 4.0), (2, 5.0)] if mode is Mode.MIN else [(2, 5.0), (4, 4.0)]
    assert ranked == [(3, -worst), *middle, (1, worst)]


@pytest.mark.parametrize("running", [True, False])
def test_study_whose_only_value_is_nan_has_no_best_trial(database, study, run, running):
    run.report(math.nan)
    if not running:
        run.finish()

    with pytest.raises(NoResults, match="has reported any 'loss' but NaN yet"):
        best_trials(database, study)


def test_running_and_pending_trials_are_ranked_and_the_lower_number_wins_a_tie(
    database, study, worker
):
    first, second, third, last = (worker.take() for _ in range(4))
    last.report(0.5)
    third.finish(0.5)
    second.finish(0.5, outcome=Reason.PREEMPTED)
    first.report(0.7)

    found = best_trials(database, study, limit=3)

    assert [trial.number for trial in found] == [1, 2, 3]


def test_running_trial_is_ranked_by_its_live_results_only(database, study, worker):
    worker.take().finish(0.1, outcome=Reason.PREEMPTED)
    worker.ask().finish(0.5)

    worker.claim().report(0.9, first=1)

    assert [trial.best_value for trial in best_trials(database, study, limit=5)] == [0.5, 0.9]


# --- summaries


def test_stored_summary_equals_a_summary_computed_from_the_live_results(database, study, run):
    run.report(0.9, math.nan)
    run.report(0.3, 0.3, math.inf)

    expected = Summary().add(live_results(database, study, 0), study.objective)
    assert run.trial().summary == expected
    assert expected == Summary(5, 5, math.inf, 0.3, 3, 0.3)


def test_metrics_are_summed_up_when_the_trial_ends(database, study, run):
    run.report(4.0, acc=0.5, tag="x", flag=True)
    run.report(2.0, acc=math.nan)
    run.finish(3.0)

    with database.begin(write=False) as txn:
        summary = txn.all(trial.select())[0].metric_summary
    assert summary == {
        "loss": {"min": 2.0, "max": 4.0, "avg": 3.0, "last": 3.0},
        "acc": {"min": 0.5, "max": 0.5, "avg": 0.5, "last": summary["acc"]["last"]},
    }
    assert math.isnan(summary["acc"]["last"])


def test_trial_without_results_has_an_empty_summary(database, study, run):
    run.finish()

    assert list_trials(database, study)[0].summary == Summary()
    assert rows(database, "SELECT metric_summary, rank_score FROM trial") == [(None, None)]
