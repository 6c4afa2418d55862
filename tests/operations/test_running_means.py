"""Running means of live results are exact, and begin at the end of the grace period."""

import math
from contextlib import closing

import pytest
from harness.arrange import SimulatedWorker, new_study, rows, run_together

from studydb.db import connect
from studydb.domain.life.states import Mode, Reason
from studydb.schedulers import MedianStopping
from studydb.store import means as means_in_store


def study_of(database, interval=1, grace_period=1, **options):
    scheduler = MedianStopping(interval=interval, grace_period=grace_period)
    return new_study(database, scheduler=scheduler, **options)


def means(database):
    """Return the newest study's recorded scores, as a dict from the rung's step to the score."""
    sql = "SELECT g.step, e.score FROM rung_entry e JOIN rung g ON g.id = e.rung_id"
    newest = "g.study_id = (SELECT max(id) FROM study)"
    return dict(rows(database, f"{sql} WHERE {newest} ORDER BY g.step"))


def test_mean_does_not_depend_on_how_the_steps_are_divided_into_batches(database):
    values = [0.5, 0.25, 1.0, 0.125, 2.0, 0.75]
    for sizes in ([6], [1] * 6, [2, 3, 1]):
        study = study_of(database)
        run = SimulatedWorker(database, study).take()
        left = list(values)
        for size in sizes:
            run.report(*(left.pop(0) for _ in range(size)))
        assert means(database) == {n: sum(values[:n]) / n for n in range(1, 7)}


def test_mean_at_a_rung_includes_the_results_at_steps_without_a_rung(database):
    run = SimulatedWorker(database, study_of(database, interval=3)).take()

    for value in (0.5, 0.25, 1.0, 0.5, 0.5, 2.0):
        run.report(value)

    assert means(database) == {3: 1.75 / 3, 6: 4.75 / 6}


@pytest.mark.parametrize("batches", [(6,), (1, 5), (3, 3)])
def test_mean_counts_each_step_once_if_a_trial_trains_steps_again(database, batches):
    worker = SimulatedWorker(database, study_of(database, interval=4))
    run = worker.take()
    run.report(0.5, 0.5, 0.5, 0.5, 8.0)
    run.finish(outcome=Reason.PREEMPTED)

    again, values = worker.take(), [1.0] * 6
    first = 3
    for size in batches:
        again.report(*(values.pop() for _ in range(size)), first=first)
        first = None

    assert means(database) == {4: 0.5, 8: (0.5 * 2 + 6.0) / 8}


def test_mean_of_a_maximised_metric_is_negated_and_a_mean_that_is_not_finite_is_not_recorded(
    database,
):
    study = study_of(database, mode=Mode.MAX)
    run = SimulatedWorker(database, study).take()

    run.report(0.5, 0.25, math.nan, 0.5)

    assert means(database) == {1: -0.5, 2: -0.375}


@pytest.mark.parametrize("batches", [(6,), (1, 1, 4), (2, 4)])
def test_mean_begins_at_the_end_of_the_grace_period(database, batches):
    run = SimulatedWorker(database, study_of(database, grace_period=3)).take()

    values = [8.0, 4.0, 1.0, 2.0, 0.75, 0.25]
    for size in batches:
        run.report(*(values.pop(0) for _ in range(size)))

    assert means(database) == {3: 1.0, 4: 1.5, 5: 1.25, 6: 1.0}


def test_mean_begins_at_the_end_of_the_grace_period_if_a_trial_trains_all_steps_again(database):
    worker = SimulatedWorker(database, study_of(database, grace_period=3, interval=5))
    run = worker.take()
    run.report(8.0, 8.0, 1.0, 1.0, 1.0)
    run.finish(outcome=Reason.PREEMPTED)

    worker.take().report(8.0, 8.0, *[4.0] * 8)

    assert means(database) == {5: 1.0, 10: 4.0}


def test_cost_of_a_mean_does_not_grow_with_the_length_of_the_trial(database, monkeypatch):
    read, make = [], means_in_store.Result

    def counted(*values):
        read.append(values)
        return make(*values)

    monkeypatch.setattr(means_in_store, "Result", counted)
    run = SimulatedWorker(database, study_of(database, interval=500)).take()
    for _ in range(3):
        run.report(*[0.5] * 499)
        run.report(0.5)
    assert means(database) == {500: 0.5, 1000: 0.5, 1500: 0.5}
    assert len(read) == 3 * 499
    ((step, n),) = rows(database, "SELECT step, n_results FROM running_mean")
    assert (step, n) == (1500, 1500)


def test_first_reports_of_several_trials_at_the_same_moment_make_one_rung(database, storage_url):
    for _ in range(4):
        study = study_of(database)
        runs = [SimulatedWorker(connect(storage_url), study).take() for _ in range(4)]
        run_together([lambda run=run: run.report(0.5) for run in runs])
        for run in runs:
            with closing(run.worker.database):
                pass
    made = "SELECT count(*), min(n_entries) FROM rung GROUP BY study_id"
    assert rows(database, made) == [(1, 4)] * 4
