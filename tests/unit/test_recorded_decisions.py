"""
Schedulers decide as those of Ray Tune and Syne Tune did, on recorded random reports.

`scripts/oracles/scheduler_decisions.py` recorded the reports and decisions; `tests/oracle` runs the
two systems on further random reports.
"""

import json
from pathlib import Path

import pytest
from harness.oracle_replay import differences

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "scheduler_decisions.json").read_text())
CASES = [(name, place) for name, cases in RECORDED.items() for place in range(len(cases))]


@pytest.mark.parametrize(("name", "place"), CASES)
def test_decisions_equal_those_that_the_other_system_made(name, place):
    assert differences(name, RECORDED[name][place]) == []


@pytest.mark.parametrize("name", ["ray_asha", "ray_median", "syne_tune_asha"])
def test_recordings_have_enough_stops_and_continuations(name):
    decisions = [event[-1] for case in RECORDED[name] for event in case["events"]]

    assert decisions.count(True) > 100
    assert decisions.count(False) > 500


def test_recorded_rungs_kept_some_trials_and_ended_others():
    kept = [trials for case in RECORDED["ray_hyperband"] for *_, trials in case["kept"]]
    reports = sum(len(case["events"]) for case in RECORDED["ray_hyperband"])

    assert len(kept) > 50
    assert 2 * sum(map(len, kept)) < reports
