"""Reports at rungs, promotions and closings of rungs, as in `duplicate_requests`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from harness.arrange import SimulatedWorker, new_request, new_study
from harness.control_requests import Arranged, Call
from studydb.db import Database
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.domain.records import Study
from studydb.domain.scheduling import Close, Scheduler
from studydb.operations import control
from studydb.operations.close_rung import close_rung
from studydb.operations.give_up import give_up
from studydb.operations.promote import promote
from studydb.operations.report import report
from studydb.schedulers import ASHA, HyperBand, MedianStopping


def _reporting(database: Database, study: Study, *values: float, done: bool = False) -> Call:
    """A new trial reports these values, in one batch."""
    run = SimulatedWorker(database, study).ask()
    assert run is not None
    batch = run.batch(*values, done=done)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def _reporting_at_a_rung(database: Database) -> Call:
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    SimulatedWorker(database, study).take().report(0.1)
    return _reporting(database, study, 0.5)


def _with_waiting_trials(database: Database) -> Study:
    """A study in which three trials wait at a rung; the first is the best."""
    scheduler = ASHA(max_t=9, reduction_factor=3, type="promotion")
    study = new_study(database, scheduler=scheduler)
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.5, 0.9):
        run = worker.take()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    return study


def _promoting(database: Database) -> Call:
    study = _with_waiting_trials(database)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: promote(over, study, claimant)


def _with_scheduler(database: Database, scheduler: Scheduler, **overrides: Any) -> Study:
    """A study whose scheduler is not in `BY_NAME`; the study's row names another scheduler."""
    return replace(new_study(database, **overrides), scheduler=scheduler)


def with_full_rung(database: Database, *values: float) -> Study:
    """A study in which the trials of HyperBand's first bracket wait at their rung."""
    study = _with_scheduler(database, HyperBand(max_t=3), num_trials=3)
    worker = SimulatedWorker(database, study)
    for value in values:
        run = worker.take()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    return study


def _closing_a_rung(database: Database) -> Call:
    study = with_full_rung(database, 0.5, 0.1, 0.9)

    def call(over: Database) -> None:  # drops the answer, which differs in a duplicate
        close_rung(over, study, Close(RungKey(0, 1), keep=1))

    return call


def _giving_up(database: Database) -> Call:
    study = with_full_rung(database, 0.5, 0.1, 0.9)
    close_rung(database, study, Close(RungKey(0, 1), keep=1))
    return lambda over: give_up(over, study)


def _reporting_at_max_t(database: Database) -> Call:
    """The report completes the trial, and enters the rung by which the end game counts."""
    study = new_study(database, scheduler=ASHA(max_t=2, type="promotion", end_game=0.5))
    run = SimulatedWorker(database, study).take()
    batch = run.batch(0.5, first=2)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def _reporting_at_a_new_rung(database: Database) -> Call:
    return _reporting(database, with_full_rung(database), 0.5)


def _reporting_a_mean(database: Database) -> Call:
    """The report is judged by the trial's running mean, which a second attempt computes anew."""
    study = _with_scheduler(database, MedianStopping(interval=2))
    worker = SimulatedWorker(database, study)
    worker.take().report(0.5, 0.25)
    run = worker.take()
    run.report(0.5, 0.25, 0.5)
    run.finish(outcome=Reason.PREEMPTED)
    run = worker.take()
    batch = run.batch(0.5, 0.25, first=1)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def _reporting_at_a_rung_of_waiting_trials(database: Database, *, done: bool = False) -> Call:
    return _reporting(database, _with_waiting_trials(database), 0.3, done=done)


def _steering_a_waiting_trial(operation: Callable[..., None], database: Database) -> Call:
    study, request = _with_waiting_trials(database), new_request()
    return lambda over: operation(over, study, [0], request)


REPORTS: dict[str, Arranged] = {
    "report_at_a_rung": _reporting_at_a_rung,
    "report_that_pauses_at_a_rung": _reporting_at_a_rung_of_waiting_trials,
    "report_that_completes_the_trial_at_a_rung": partial(
        _reporting_at_a_rung_of_waiting_trials, done=True
    ),
    "report_at_a_new_rung": _reporting_at_a_new_rung,
    "report_at_max_t": _reporting_at_max_t,
    "report_a_mean": _reporting_a_mean,
}

OPERATIONS: dict[str, Arranged] = {
    "promote": _promoting,
    "close_a_rung": _closing_a_rung,
    "give_up": _giving_up,
    "stop_a_waiting_trial": partial(_steering_a_waiting_trial, control.stop),
    "resume_a_waiting_trial": partial(_steering_a_waiting_trial, control.resume),
    **REPORTS,
}
