"""
Calls for `duplicate_requests` that concern rungs or the trials that wait there.

The calls are reports, a finish, promotions, the closing of a rung, and requests of people.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.arrange import SimulatedWorker, new_request, new_study
from harness.control_requests import Arranged, Call
from studydb.db import Database
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.domain.records import Claimant, Study
from studydb.domain.scheduling import Close
from studydb.operations import control
from studydb.operations.close_rung import close_rung
from studydb.operations.finish import finish
from studydb.operations.give_up import give_up
from studydb.operations.invalidate import invalidate
from studydb.operations.promote import NextStep, promote
from studydb.operations.report import report
from studydb.schedulers import ASHA, HyperBand, MedianStopping, OneEpoch


def _reporting(database: Database, study: Study, *values: float, done: bool = False) -> Call:
    """The call reports `values` of a new trial, in one batch."""
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


def with_full_rung(database: Database, *values: float) -> Study:
    """
    A study in which one trial with each of the values waits at the first rung of HyperBand.

    Three values fill the rung.
    """
    study = new_study(database, scheduler=HyperBand(max_t=3), num_trials=3)
    worker = SimulatedWorker(database, study)
    for value in values:
        run = worker.take()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    return study


def _closing_a_rung(database: Database) -> Call:
    study = with_full_rung(database, 0.5, 0.1, 0.9)

    def call(over: Database) -> None:  # hides the answer, which a duplicate request does not get
        close_rung(over, study, Close(RungKey(0, 1), keep=1))

    return call


def _giving_up(database: Database) -> Call:
    study = with_full_rung(database, 0.5, 0.1, 0.9)
    close_rung(database, study, Close(RungKey(0, 1), keep=1))
    return lambda over: give_up(over, study)


def _reporting_at_max_t(database: Database) -> Call:
    """The report completes the trial, and enters the rung at `max_t`, which the end game reads."""
    study = new_study(database, scheduler=ASHA(max_t=2, type="promotion", end_game=0.5))
    run = SimulatedWorker(database, study).take()
    batch = run.batch(0.5, first=2)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def _reporting_at_a_new_rung(database: Database) -> Call:
    return _reporting(database, with_full_rung(database), 0.5)


def _reporting_a_mean(database: Database) -> Call:
    """A second attempt reports step 1 again, so the report resets the trial's running mean."""
    study = new_study(database, scheduler=MedianStopping(interval=2))
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


def _reporting_by_rank(database: Database) -> Call:
    scheduler = ASHA(max_t=9, reduction_factor=2, rule="syne_tune")
    study = new_study(database, scheduler=scheduler)
    for value in (0.1, 0.2):
        SimulatedWorker(database, study).take().report(value)
    return _reporting(database, study, 0.5)


def _reporting_a_mean_that_pauses(database: Database) -> Call:
    study = new_study(database, scheduler=MedianStopping(min_samples=1, hard_stop=False))
    SimulatedWorker(database, study).take().report(0.25)
    return _reporting(database, study, 0.5, 0.75)


def _reporting_at_two_rungs(database: Database) -> Call:
    """The report enters two rungs, of which the second is new."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    SimulatedWorker(database, study).take().report(0.9)
    return _reporting(database, study, 0.5, 0.4, 0.3)


def _with_closed_rung(database: Database) -> Study:
    """A study in which OneEpoch has chosen one of two trials; then the study was extended."""
    study = new_study(database, scheduler=OneEpoch(i=1, top_k=1, max_t=9), num_trials=2)
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.5):
        run = worker.take()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    close_rung(database, study, Close(RungKey(0, 1), keep=1))
    control.extend(database, study, new_request(), n_more=1)
    return study


def _reporting_at_a_closed_rung(database: Database) -> Call:
    return _reporting(database, _with_closed_rung(database), 0.3)


def promoting_to_the_end_of_a_rung(study: Study, claimant: Claimant) -> Call:
    """The call promotes a trial, and then ends the rung if no trial waits there any more."""

    def call(over: Database) -> NextStep:
        step = promote(over, study, claimant)
        give_up(over, study)
        return step

    return call


def promoting_the_chosen_trial(database: Database) -> Call:
    """The call gives a trial up, promotes the trial that was kept, and ends the rung."""
    study = _with_closed_rung(database)
    return promoting_to_the_end_of_a_rung(study, SimulatedWorker(database, study).claimant())


def _promoting_in_the_end_game(database: Database) -> Call:
    """The study's only trial waits at the first rung, where only the end game promotes it."""
    scheduler = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0.5)
    study = new_study(database, scheduler=scheduler, num_trials=1)
    worker = SimulatedWorker(database, study)
    run = worker.take()
    run.report(0.5)
    run.finish(outcome=Reason.PREEMPTED)
    claimant = worker.claimant()
    return lambda over: promote(over, study, claimant)


def _invalidating_a_waiting_trial(database: Database) -> Call:
    study, request = _with_waiting_trials(database), new_request()
    return lambda over: invalidate(over, study, [0], request, reason="wrong labels")


def _finishing_at_a_rung_of_waiting_trials(database: Database) -> Call:
    """The attempt ends with results that pause its trial at the rung."""
    study = _with_waiting_trials(database)
    run = SimulatedWorker(database, study).ask()
    assert run is not None
    given: Any = {"lease": run.lease, "outcome": Reason.PREEMPTED, "batch": run.batch(0.3)}
    return lambda over: finish(over, study, **given)


REPORTS: dict[str, Arranged] = {
    "report_at_a_rung": _reporting_at_a_rung,
    "report_that_pauses_at_a_rung": _reporting_at_a_rung_of_waiting_trials,
    "report_that_completes_the_trial_at_a_rung": partial(
        _reporting_at_a_rung_of_waiting_trials, done=True
    ),
    "report_at_a_new_rung": _reporting_at_a_new_rung,
    "report_at_max_t": _reporting_at_max_t,
    "report_a_mean": _reporting_a_mean,
    "report_by_rank": _reporting_by_rank,
    "report_a_mean_that_pauses": _reporting_a_mean_that_pauses,
    "report_at_two_rungs": _reporting_at_two_rungs,
    "report_at_a_closed_rung": _reporting_at_a_closed_rung,
}

FINISHES: dict[str, Arranged] = {
    "finish_that_pauses_at_a_rung": _finishing_at_a_rung_of_waiting_trials,
}

OPERATIONS: dict[str, Arranged] = {
    "promote": _promoting,
    "promote_in_the_end_game": _promoting_in_the_end_game,
    "invalidate_a_waiting_trial": _invalidating_a_waiting_trial,
    "close_a_rung": _closing_a_rung,
    "give_up": _giving_up,
    "stop_a_waiting_trial": partial(_steering_a_waiting_trial, control.stop),
    "resume_a_waiting_trial": partial(_steering_a_waiting_trial, control.resume),
    **REPORTS,
}
