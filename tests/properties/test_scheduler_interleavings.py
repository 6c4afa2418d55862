"""
Trials enter a rung while other operations run, interleaved statement by statement on PostgreSQL.

Under every scheduler, and in any schedule, the verdicts and the rows are those of a serial order,
and there is no deadlock. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import os
from contextlib import nullcontext
from functools import partial
from random import Random

import pytest
from harness.interleaver import step_by_step
from harness.row_invariants import broken_promises
from harness.scheduler_calls import JUDGED, OTHERS, SCHEDULERS, AtRung, in_order, told
from harness.serial_orders import SerialOutcomes

from studydb.store import rung_ranks

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "1"))
"""The number of schedules in which each group of calls runs."""

GROUPS = [
    *(("report", other) for other in OTHERS),
    *((judged, "report a tie") for judged in JUDGED[1:]),
    ("report two rungs", "finish another trial"),
    ("finish", "stop"),
    ("finish", "invalidate the best"),
    ("report", "report again", "report a tie"),
    ("report", "report a tie", "stop"),
    ("report", "finish another trial", "promote"),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("calls", GROUPS, ids=" + ".join)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_calls_at_a_rung_have_the_effect_of_a_serial_order(stage, name, calls):
    database, interleaver = stage
    serial = SerialOutcomes(len(calls), partial(in_order, database, name, calls))

    for seed in range(SCHEDULES):
        rng = Random(f"{name} {calls} {seed}")
        situation = AtRung(database, name)
        made = [situation.call(call) for call in calls]
        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(made, rng, clock=situation.clock)

        assert result.faults == [], result
        assert broken_promises(database, situation.study) == {}, result
        found = ([told(answer) for answer in result.answers], situation.rows())
        assert serial.explain(found, result.schedule) is not None, result


def test_trial_that_enters_a_rung_while_it_is_invalidated_does_not_rank_there(stage, monkeypatch):
    """The invalidation locks rungs; the trial enters a rung; the invalidation locks the trial."""
    database, interleaver = stage
    situation = AtRung(database, "stopping")
    report, invalidate = situation.call("report"), situation.call("invalidate")
    lock, other = rung_ranks.lock, interleaver.databases[0]
    other.clock = situation.clock

    def lock_and_report(txn, **given):
        monkeypatch.undo()
        locked = lock(txn, **given)
        report(other)
        return locked

    monkeypatch.setattr(rung_ranks, "lock", lock_and_report)
    invalidate(database)

    assert broken_promises(database, situation.study) == {}
