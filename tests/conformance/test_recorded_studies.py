"""Operations replay recorded reports; the schedulers decide as Ray Tune and Syne Tune did."""

import json
from itertools import count
from pathlib import Path

import pytest
from harness.arrange import Run, SimulatedWorker, new_study

from studydb.domain.life.states import Mode, Reason
from studydb.operations.promote import NextStep, promote
from studydb.schedulers import ASHA, HyperBand, MedianStopping

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "scheduler_decisions.json").read_text())


def stopping(name, case):
    if name == "ray_median":
        return MedianStopping(**case["options"])
    return ASHA(**case["options"], rule="ray" if name == "ray_asha" else "syne_tune")


ONE_BRACKET = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name in ("ray_asha", "ray_median", "syne_tune_asha")
    for place, case in enumerate(RECORDED[name])
    if not any(case.get("brackets", ())) and place % 5 == 0
]


@pytest.mark.parametrize(("name", "case"), ONE_BRACKET)
def test_trials_stop_where_those_of_the_other_system_stopped(database, name, case):
    study = new_study(
        database, scheduler=stopping(name, case), mode=Mode(case["mode"]), num_trials=None
    )
    worker = SimulatedWorker(database, study)
    runs = [worker.ask() for _ in range(1 + max(number for number, *_ in case["events"]))]

    for number, step, value, stops in case["events"]:
        verdict = runs[number].report(value, first=step).verdict

        assert stops is None or (verdict is not None) == stops, (number, step)
        if verdict is not None:
            runs[number].finish(outcome=Reason.PREEMPTED)


@pytest.mark.row("E5")
@pytest.mark.parametrize("case", RECORDED["ray_hyperband"][::12], ids=count())
def test_same_trials_go_on_at_each_rung_as_in_ray_tune(database, case):
    scheduler = HyperBand(**case["options"])
    study = new_study(
        database, scheduler=scheduler, mode=Mode(case["mode"]), num_trials=scheduler.band_size
    )
    worker = SimulatedWorker(database, study)
    recorded = sorted(range(scheduler.band_size), key=lambda one: (-case["brackets"][one], one))
    runs = {number: worker.ask() for number in recorded}  # the bracket with most rungs comes first
    number_of = {run.lease.number: number for number, run in runs.items()}
    last, kept = {}, {}

    for number, step, value in case["events"]:
        if value is None:
            runs[number].finish(outcome=Reason.FAILED)
            last.pop(number, None)
        else:
            runs[number].report(value, first=step)
            runs[number].finish(outcome=Reason.PREEMPTED)
            last[number] = step
        for run in promoted(worker):
            other = number_of[run.lease.number]
            runs[other] = run
            kept.setdefault((case["brackets"][other], last[other]), set()).add(other)

    assert kept == {(rungs, step): set(trials) for rungs, step, trials in case["kept"] if trials}


def promoted(worker) -> list[Run]:
    """Promote and claim trials until the scheduler promotes none; return the new attempts."""
    runs = []
    while promote(worker.database, worker.study, worker.claimant()) is NextStep.CLAIM:
        runs.append(worker.claim())
    return runs
