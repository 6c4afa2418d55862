"""A tally takes bounded memory, and is enough to compute the metric_summary of its trial."""

import json

import pytest
from harness.arrange import rows

from studydb.domain import tally
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.lease.held import HeldAttempt

LONG = "x" * 10_000
SUMMARY = {
    "loss": {"min": 0.25, "max": 0.5, "avg": 0.375, "last": 0.25},
    "accuracy": {"min": 0.0, "max": 1.0, "avg": 0.5, "last": 1.0},
}


@pytest.fixture
def held(database, study, run):
    return HeldAttempt(database, study, run.claimed)


def flush_two(held):
    for step, value in enumerate((0.5, 0.25), 1):
        metrics = {"accuracy": step - 1, "text": LONG, "list": [LONG], "sure": True}
        held.add(Result(step, value, metrics))
        held.flush()


def test_tally_keeps_neither_texts_nor_lists_in_memory(held):
    flush_two(held)

    assert held.buffer.tally.n_results == 2
    assert LONG not in repr(held.buffer.tally._kept)


@pytest.mark.parametrize("kept", [tally.KEPT_NUMBERS, 3], ids=["numbers kept", "numbers dropped"])
def test_metric_summary_is_the_same_whether_or_not_the_tally_has_dropped_numbers(
    database, held, monkeypatch, kept
):
    monkeypatch.setattr(tally, "KEPT_NUMBERS", kept)
    flush_two(held)

    held.end(Reason.COMPLETED)

    ((found,),) = rows(database, "SELECT CAST(metric_summary AS TEXT) FROM trial")
    assert json.loads(found) == SUMMARY
