"""Finite metrics whose sum is more than a double holds: their trial ends as every other."""

import sys

import pytest
from harness.arrange import (
    SimulatedWorker,
    new_request,
    new_study,
    recover_after_expiry,
    rows,
    trial_of,
)

from studydb.domain.life.states import Reason, State
from studydb.domain.metrics import Result
from studydb.domain.tally import Tally
from studydb.operations.control import stop

LARGEST = sys.float_info.max


def test_trial_that_reported_the_largest_double_twice_completes(database):
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).take()

    run.report(LARGEST)
    run.finish(LARGEST)

    trial = trial_of(database, study, 0)
    assert (trial.state, trial.reason) == (State.TERMINATED, Reason.COMPLETED)
    assert rows(database, "SELECT metric_summary FROM trial WHERE metric_summary IS NOT NULL")


def test_stopped_trial_that_reported_the_largest_double_twice_is_recovered(database, clock):
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).take()
    run.report(LARGEST)
    run.report(LARGEST)
    stop(database, study, [0], new_request())

    assert recover_after_expiry(clock, database, study) == 1

    assert trial_of(database, study, 0).state is State.TERMINATED


@pytest.mark.parametrize(
    ("values", "average"),
    [
        ([LARGEST] * 3, LARGEST),
        ([-LARGEST] * 7, -LARGEST),
        ([LARGEST, LARGEST, -LARGEST, -LARGEST], 0.0),
        ([LARGEST, LARGEST, 0.0, 0.0], LARGEST / 2),
    ],
)
def test_average_of_the_largest_doubles_is_finite(values, average):
    results = [Result(step, value, {}) for step, value in enumerate(values, 1)]

    found = Tally("loss").analysis(results)["loss"]

    assert found["avg"] == average
