"""Requests of people, and some operations of attempts, each as a call that can be sent again."""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.arrange import SimulatedWorker, enqueued, new_request, new_study
from harness.settings_requests import set_retention
from studydb.db import Database
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import Study
from studydb.operations import control
from studydb.operations.annotate import note, tag
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.discard import discard
from studydb.operations.finish import finish
from studydb.operations.invalidate import invalidate
from studydb.operations.pin import pin, unpin
from studydb.operations.retry import retry
from studydb.operations.save import save
from studydb.schedulers import ASHA

Call = Callable[[Database], Any]
Arranged = Callable[[Database], Call]


def _with_failed_trials(database: Database) -> Study:
    """A study whose two trials have reported at a rung and failed; the first has a checkpoint."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3), num_trials=2)
    worker = SimulatedWorker(database, study)
    for value in (0.5, 0.1):
        run = worker.take()
        run.report(value)
        if value == 0.5:
            run.save()
        run.finish(outcome=Reason.FAILED)
    return study


def _retrying(database: Database, **options: Any) -> Call:
    study, request = _with_failed_trials(database), new_request()
    return lambda over: retry(over, study, [0, 1], request, **options)


def _with_clone(database: Database) -> Study:
    """A study with a PENDING clone; the checkpoint that the clone will restore is pinned."""
    study = _with_failed_trials(database)
    retry(database, study, [0], new_request())
    return study


def _finishing_a_clone(database: Database) -> Call:
    study = _with_clone(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.45)
    given: Any = {"lease": run.lease, "outcome": Reason.COMPLETED, "batch": run.batch(0.4)}
    return lambda over: finish(over, study, **given)


def _stopping_a_clone(database: Database) -> Call:
    study, request = _with_clone(database), new_request()
    return lambda over: control.stop(over, study, [2], request)


def _marking_a_source_corrupt(database: Database) -> Call:
    run = SimulatedWorker(database, _with_clone(database)).take()
    source = run.claimed.checkpoint
    assert source is not None
    return lambda over: mark_corrupt(over, lease=run.lease, checkpoint=source)


def _invalidating(database: Database, *, undo: bool = False) -> Call:
    """Of the four trials two have ended, one runs and one is PENDING."""
    study, request = _with_failed_trials(database), new_request()
    control.extend(database, study, new_request(), n_more=2)
    SimulatedWorker(database, study).take().report(0.3)
    enqueued(database, study)
    if undo:
        invalidate(database, study, range(4), new_request(), reason="wrong labels")
    return lambda over: invalidate(
        over, study, range(4), request, reason="" if undo else "wrong labels", undo=undo
    )


def _noting(database: Database) -> Call:
    study, request = new_study(database), new_request()
    number = enqueued(database, study)
    return lambda over: note(over, study, request, text="odd curve", number=number)


def _tagging(database: Database) -> Call:
    study, request = new_study(database), new_request()
    numbers = [enqueued(database, study) for _ in range(2)]
    tag(database, study, numbers[:1], new_request(), add=["good", "old"])
    return lambda over: tag(over, study, numbers, request, add=["good"], remove=["old"])


def _ending_an_invalidated_trial(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    invalidate(database, study, [0], new_request(), reason="wrong labels")
    given: Any = {"lease": run.lease, "outcome": Reason.PREEMPTED, "batch": run.batch(0.4)}
    return lambda over: finish(over, study, **given)


def _resuming_a_trial_with_changes(database: Database) -> Call:
    study, request = new_study(database), new_request()
    number = enqueued(database, study)
    control.pause(database, study, [number], new_request())
    return lambda over: control.resume(over, study, [number], request, changes={"lr": 0.25})


def _stopping_the_study_now(database: Database) -> Call:
    study, request = new_study(database), new_request()
    SimulatedWorker(database, study).take()
    return lambda over: control.set_status(over, study, Status.STOPPED, request, now=True)


def _discarding(database: Database) -> Call:
    study, request = _with_failed_trials(database), new_request()
    return lambda over: discard(over, study, 0, request)


def _setting_retention(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: set_retention(over, study, Keep(best=2), request)


def _saving_by_a_policy(database: Database) -> Call:
    """The save compares the values at the checkpoints' steps, and removes one checkpoint."""
    study, keep = new_study(database), Keep(best=1, every=2)
    run = SimulatedWorker(database, study).take()
    for value in (0.25, 0.5, 0.75, 0.5):
        run.report(value)
        run.save(keep=keep)
    run.report(0.4)
    given: Any = {"keep": keep, "objective": study.objective, "data": b"abc"}
    checkpoint = run.checkpoint()
    return lambda over: save(over, lease=run.lease, checkpoint=checkpoint, **given)


def _pinning(database: Database, *, step: int | None = None) -> Call:
    study, request = _with_failed_trials(database), new_request()
    return lambda over: pin(over, study, 0, request, step=step)


def _unpinning(database: Database) -> Call:
    """A clone has pinned the same checkpoint as the person; the clone's pin remains."""
    study, request = _with_clone(database), new_request()
    pin(database, study, 0, new_request())
    return lambda over: unpin(over, study, 0, request)


ENDS_OF_ATTEMPTS: dict[str, Arranged] = {
    "finish_a_clone": _finishing_a_clone,
    "end_an_invalidated_trial": _ending_an_invalidated_trial,
}

REQUESTS_OF_PEOPLE: dict[str, Arranged] = {
    "resume_a_trial_with_changes": _resuming_a_trial_with_changes,
    "stop_the_study_now": _stopping_the_study_now,
    "retry": _retrying,
    "retry_from_scratch": partial(_retrying, from_scratch=True),
    "stop_a_clone": _stopping_a_clone,
    "mark_a_source_corrupt": _marking_a_source_corrupt,
    "invalidate": _invalidating,
    "reinstate": partial(_invalidating, undo=True),
    "discard": _discarding,
    "pin": _pinning,
    "pin_a_step": partial(_pinning, step=1),
    "unpin": _unpinning,
    "set_retention": _setting_retention,
    "save_by_a_policy": _saving_by_a_policy,
    "note": _noting,
    "tag": _tagging,
}
"""Attempts, not people, send `mark_a_source_corrupt` and `save_by_a_policy`."""
