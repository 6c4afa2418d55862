"""
A kept checkpoint is listed with the value that its trial reported at the checkpoint's step.

The overview sums up the number and the size of the kept checkpoints of each host.
"""

import math

import pytest
from harness.arrange import SimulatedWorker, new_study

from studydb.domain.life.states import Reason
from studydb.operations.overview import read_overview
from studydb.operations.reads import list_checkpoints, list_checkpoints_of
from studydb.operations.restore import kept, newest


def values(run):
    return [one.value for one in kept(run.worker.database, trial=run.trial())]


def test_checkpoint_has_the_value_of_its_attempt_or_else_of_an_earlier_attempt(worker, run):
    run.report(0.5, 0.25)
    run.save()
    run.finish(outcome=Reason.PREEMPTED)
    again = worker.take()
    again.save(again.checkpoint(step=2))
    assert values(again) == [0.25, 0.25]

    again.report(0.125, first=2)
    assert values(again) == [0.25, 0.125]


def test_checkpoint_of_a_step_without_a_result_has_no_value(run):
    run.report(math.nan)
    run.save()
    run.save(run.checkpoint(step=7))

    first, second = values(run)
    assert math.isnan(first)
    assert second is None
    found = newest(run.worker.database, trial=run.trial(), study_id=run.worker.study.id)
    assert (found.row.step, found.value) == (7, None)


def test_list_has_the_kept_checkpoints_of_the_newest_trials(database):
    study = new_study(database, num_trials=3)
    worker = SimulatedWorker(database, study)
    for value in (0.5, 0.25, 0.125):
        run = worker.take()
        for _ in range(3):
            run.report(value)
            run.save()
        run.finish()

    listed = list_checkpoints(database, study, limit=2)

    assert [(one.number, one.step, one.value) for one in listed] == [
        *((1, 2, 0.25), (1, 3, 0.25)),
        *((2, 2, 0.125), (2, 3, 0.125)),
    ]
    assert list_checkpoints_of(database, study, 1) == listed[:2]


@pytest.mark.parametrize("n_trials", [0, 2])
def test_overview_sums_up_kept_checkpoints_by_host(database, n_trials):
    study = new_study(database, num_trials=3)
    for _ in range(n_trials):
        run = SimulatedWorker(database, study).take()
        for _ in range(3):
            run.report(0.5)
            run.save()

    sizes = read_overview(database, study).checkpoints

    assert [(one.n, one.size_bytes) for one in sizes] == ([(4, 12)] if n_trials else [])
