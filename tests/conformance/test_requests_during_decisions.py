"""
Other operations run while the user's scheduler decides, between two transactions.

A decision is stored only if the rung is still as the scheduler saw it; otherwise the scheduler is
asked again. So, on both databases, the rows are as if the other operation had run first, and then
the results had been judged. A promotion may come first or second: the rows are those that one of
the two orders gives.
"""

import itertools

import pytest
from harness.actions import outcome_of
from harness.row_invariants import broken_promises
from harness.scheduler_calls import JUDGED, OTHERS, SCHEDULERS, AtRung, in_order, told

from studydb.domain.deciding import DecisionFailed

CUSTOM = [name for name in SCHEDULERS if name.startswith("custom")]

PAIRS = [
    (judged, other)
    for judged, other in itertools.product(JUDGED, OTHERS)
    if judged == "report" or other != "report again"
]

every_custom_scheduler = pytest.mark.parametrize("name", CUSTOM)


def run_meanwhile(database, name, judged, other):
    """Make a call that asks the scheduler, and another call before the answer is used."""
    situation = AtRung(database, name)
    asks = situation.meanwhile()
    made, answers = [situation.call(judged), situation.call(other)], [None, None]

    def act():
        answers[1] = outcome_of(lambda: made[1](database))

    asks.act = act
    answers[0] = outcome_of(lambda: made[0](database))
    assert asks.act is None, "the scheduler was not asked"
    assert broken_promises(database, situation.study) == {}
    return ([told(answer) for answer in answers], situation.rows()), asks


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("judged", "other"), PAIRS)
@every_custom_scheduler
def test_results_are_judged_after_the_operation_that_ran_while_the_scheduler_decided(
    database, name, judged, other
):
    found, _ = run_meanwhile(database, name, judged, other)

    assert found == in_order(database, name, [judged, other], [1, 0])


@pytest.mark.parametrize("other", ["report", "stop", "invalidate the best", "promote"])
def test_promotion_with_an_operation_in_between_leaves_the_rows_of_a_serial_order(database, other):
    name = "custom, by rungs that close"
    found, _ = run_meanwhile(database, name, "promote", other)

    orders = ([0, 1], [1, 0])
    assert found in [in_order(database, name, ["promote", other], order) for order in orders]


@every_custom_scheduler
def test_failure_to_decide_does_not_pause_the_study_if_another_trial_has_entered_the_rung_meanwhile(
    database, name
):
    """The process that decides dies after another trial has entered the rung."""
    situation = AtRung(database, name)
    asks = situation.meanwhile()
    first, other = situation.call("report"), situation.call("report a tie")
    asks.act, asks.fail = (lambda: other(database)), DecisionFailed("it died")

    first(database)

    assert situation.rows() == in_order(database, name, ["report", "report a tie"], [1, 0])[1]


@every_custom_scheduler
@pytest.mark.parametrize("other", ["stop", "pause", "pause the study", "renew", "extend"])
def test_failure_to_decide_pauses_the_study_although_another_request_was_made_meanwhile(
    database, name, other
):
    """The request does not change what the scheduler is asked, so the failure counts."""
    situation = AtRung(database, name)
    asks = situation.meanwhile()
    first, second = situation.call("report"), situation.call(other)
    asks.act, asks.fail = (lambda: second(database)), DecisionFailed("it died")

    first(database)

    assert asks.n_asked == 1  # `rows`, called next, asks the scheduler, too
    _, _, entries, events = situation.rows()
    assert entries[2:] == []
    assert [kind for kind, *_ in events].count("study paused") == 1
