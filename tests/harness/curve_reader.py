"""A worker that reports recorded curves instead of training."""

import json
import math
from multiprocessing.synchronize import Barrier
from pathlib import Path

from harness.arrange import Run, SimulatedWorker, retry_while_busy
from studydb.db import connect
from studydb.operations.create import load

CURVES = Path(__file__).parents[1] / "data" / "digits_mlp_curves.json"

DIVERGES_AT = 3


def recorded_curves() -> list[list[float]]:
    """For each of 150 configurations, the validation error after each epoch."""
    return [list(curve["values"]) for curve in json.loads(CURVES.read_text())["curves"]]


def read_curves() -> list[list[float]]:
    """For each of 60 trials, the validation error at each step; for six, NaN from step 3 on."""
    curves = recorded_curves()[:60]
    for curve in curves[7::10]:
        curve[DIVERGES_AT - 1 :] = [math.nan] * (len(curve) - DIVERGES_AT + 1)
    return curves


def report_curves(storage: str, name: str, together: Barrier) -> None:
    database, curves = connect(storage, connections=1), read_curves()
    worker = SimulatedWorker(database, load(database, name))
    run = retry_while_busy(worker.ask)  # each process has a trial before the first report
    together.wait(60)
    while run:
        train(run, curves[run.lease.number])
        retry_while_busy(run.finish)
        run = retry_while_busy(worker.ask)
    database.close()


def train(run: Run, curve: list[float]) -> None:
    """Report the curve, one batch up to each decision step, until a verdict or the last step."""
    due = run.claimed.next_decision_step
    while due is not None:
        values = curve[run.after_step : due]
        answer = retry_while_busy(lambda values=values: run.report(*values))  # type: ignore[misc]
        if answer.verdict is not None:
            return
        due = answer.next_decision_step
