"""Reports, finishes and promotions with a custom scheduler, arranged to be sent again."""

from functools import partial
from typing import Any

from fleet.trainables.scheduling import Cup, Growing
from msgspec import structs

from harness.arrange import SimulatedWorker, new_study, results
from harness.asked_scheduler import asked
from harness.control_requests import Arranged, Call
from harness.rung_requests import promoting_to_the_end_of_a_rung
from studydb.db import Database
from studydb.domain.custom_scheduler import CustomScheduler, Question
from studydb.domain.deciding import DecisionNeeded, Undecided
from studydb.domain.life.decisions import Decision
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch, Lease, Study
from studydb.operations.finish import finish
from studydb.operations.report import report


def _reporting_to_a_custom_scheduler(
    database: Database,
    *,
    answer: Decision | Undecided | None = None,
    ends: bool = False,
    scheduler: CustomScheduler | None = None,
) -> Call:
    """Arrange a call that sends a batch together with the scheduler's answer about the batch."""
    study = new_study(database, scheduler=asked(scheduler or Cup()))
    SimulatedWorker(database, study).take().report(0.3, 0.3)
    run = SimulatedWorker(database, study).take()
    batch = Batch(1, results(0.5, 0.4), before=run.summary)
    needed = _needed(database, study, run.lease, batch)
    known: Any = answer or study.scheduler.ask(needed)  # type: ignore[attr-defined]
    batch = structs.replace(batch, answers={needed: known})
    if ends:
        given: Any = {"lease": run.lease, "outcome": Reason.PREEMPTED, "batch": batch}
        return lambda over: finish(over, study, **given)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def promoting_by_a_custom_scheduler(database: Database) -> Call:
    """The scheduler is asked twice: it closes the rung, and then promotes the best trial."""
    study = new_study(database, scheduler=asked(Cup()), num_trials=3)
    worker = SimulatedWorker(database, study)
    for value in (0.5, 0.1, 0.9):
        worker.take().pause(value, value)
    return promoting_to_the_end_of_a_rung(study, worker.claimant())


def _needed(database: Database, study: Study, lease: Lease, batch: Batch) -> Question:
    try:
        report(database, study, lease=lease, batch=batch)
    except DecisionNeeded as needed:
        return needed.question
    raise AssertionError("no decision is needed")


_GROWING = Growing(grace_period=2, type="promotion")

REPORTS: dict[str, Arranged] = {
    "report_that_a_custom_scheduler_judges": _reporting_to_a_custom_scheduler,
    "report_whose_custom_scheduler_fails": partial(
        _reporting_to_a_custom_scheduler, answer=Undecided("it hangs")
    ),
    "report_after_which_a_trial_asks_for_other_resources": partial(
        _reporting_to_a_custom_scheduler, scheduler=_GROWING
    ),
}

FINISHES: dict[str, Arranged] = {
    "finish_that_a_custom_scheduler_judges": partial(_reporting_to_a_custom_scheduler, ends=True),
    "finish_after_which_a_trial_asks_for_other_resources": partial(
        _reporting_to_a_custom_scheduler, ends=True, scheduler=_GROWING
    ),
}
