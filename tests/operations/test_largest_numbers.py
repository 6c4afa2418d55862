"""A trial ends as usual even if the sum of a metric's finite values exceeds the largest double."""

import sys

import pytest
from harness.arrange import new_request, recover_after_expiry, rows

from studydb.domain.life.states import Reason, State
from studydb.domain.metrics import Result
from studydb.domain.tally import Tally
from studydb.operations.control import stop

LARGEST = sys.float_info.max


def test_trial_completes_after_two_reports_of_the_largest_double(database, run):
    run.report(LARGEST)
    run.finish(LARGEST)

    assert run.trial().reason is Reason.COMPLETED
    assert rows(database, "SELECT metric_summary FROM trial WHERE metric_summary IS NOT NULL")


def test_stopped_trial_is_recovered_after_two_reports_of_the_largest_double(
    database, clock, study, run
):
    run.report(LARGEST, LARGEST)
    stop(database, study, [0], new_request())

    assert recover_after_expiry(clock, database, study) == 1

    assert run.trial().state is State.TERMINATED


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
