"""
Every operation, arranged so that one call can be sent again, over any connection.

Each function arranges what its operation needs and returns the call; the call sends the same token
or flush number each time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from harness.arrange import (
    LEASE_S,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_spec,
    new_study,
    process,
    results,
    token,
)
from studydb.db import Database
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import Batch, Failure, Trainable, TrainableKind
from studydb.operations import control
from studydb.operations.ask import ask
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.claim import claim
from studydb.operations.create import create
from studydb.operations.drain import drain, find_worker
from studydb.operations.fail import fail
from studydb.operations.finish import finish
from studydb.operations.record_event import record_event
from studydb.operations.register import leave, register
from studydb.operations.relocate import relocate
from studydb.operations.rename import rename
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.operations.revise import revise
from studydb.operations.save import save
from studydb.operations.summing import after_end
from studydb.processes import this_process
from studydb.schedulers import ASHA
from studydb.store import checkpoints

Call = Callable[[Database], Any]


def claiming(database: Database, *, waiting: int = 2, **overrides: Any) -> Call:
    study = new_study(database, **overrides)
    for _ in range(waiting):
        enqueued(database, study)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant)


def claiming_from_a_checkpoint(database: Database) -> Call:
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.PREEMPTED)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant)


def claiming_the_last(database: Database) -> Call:
    return claiming(database, waiting=1)


def claiming_the_last_place(database: Database) -> Call:
    return claiming(database, max_concurrent=1)


def asking(database: Database, **overrides: Any) -> Call:
    study = _asked_before(database, **overrides)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: ask(over, study, claimant)


def asking_for_the_last(database: Database) -> Call:
    return asking(database, num_trials=2)


def asking_for_the_last_place(database: Database) -> Call:
    return asking(database, max_concurrent=1)


def _asked_before(database: Database, **overrides: Any) -> Any:
    """A study in which one trial was made: the points of the next ones are there."""
    study = new_study(database, **overrides)
    SimulatedWorker(database, study).take().finish(0.5)
    return study


def claiming_or_asking(database: Database) -> Call:
    study = _asked_before(database, num_trials=2)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant) or ask(over, study, claimant)


def enqueueing(database: Database, **overrides: Any) -> Call:
    study, request = new_study(database, **overrides), new_request()
    return lambda over: control.enqueue(over, study, {"lr": 0.5}, request)


def enqueueing_the_last(database: Database) -> Call:
    return enqueueing(database, num_trials=1)


def extending(database: Database) -> Call:
    study, request = new_study(database, num_trials=10), new_request()
    return lambda over: control.extend(over, study, request, n_more=5)


def pausing_the_study(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: control.set_status(over, study, Status.PAUSED, request)


def resuming_the_study(database: Database) -> Call:
    study, request = new_study(database), new_request()
    run = SimulatedWorker(database, study).take()
    control.set_status(database, study, Status.PAUSED, new_request())
    run.finish(outcome=Reason.PREEMPTED)
    return lambda over: control.set_status(over, study, Status.RUNNING, request)


def pausing_a_waiting_one(database: Database) -> Call:
    return _requesting(control.pause, database, running=False)


def pausing_a_running_one(database: Database) -> Call:
    return _requesting(control.pause, database, running=True)


def stopping_a_waiting_one(database: Database) -> Call:
    return _requesting(control.stop, database, running=False)


def stopping_a_running_one(database: Database) -> Call:
    return _requesting(control.stop, database, running=True)


def resuming(database: Database) -> Call:
    study, request = new_study(database), new_request()
    number = enqueued(database, study)
    control.pause(database, study, [number], new_request())
    return lambda over: control.resume(over, study, [number], request)


def _requesting(operation: Callable[..., None], database: Database, *, running: bool) -> Call:
    study, request = new_study(database), new_request()
    numbers = [enqueued(database, study) for _ in range(2)]
    if running:
        SimulatedWorker(database, study).take()
    return lambda over: operation(over, study, numbers, request)


def creating(database: Database) -> Call:
    spec = new_spec(scheduler=ASHA(max_t=9))
    return lambda over: create(over, spec)


def renaming(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: rename(over, study, f"{study.name} again", request)


def relocating(database: Database) -> Call:
    study, request = new_study(database, checkpoints="file:///first"), new_request()
    relocate(database, study, "file:///second", new_request())
    return lambda over: relocate(over, study, "inline:", request)


def revising(database: Database) -> Call:
    study, request = new_study(database), new_request()
    signed = {"key": "mac"}
    what = Trainable(
        str(uuid4()), TrainableKind.IMPORT, "module:train", "/nowhere", "3.11", None, signed
    )
    return lambda over: revise(over, study, what, request)


def registering(database: Database) -> Call:
    study, uuid = new_study(database), token()
    given = {"process": process(), "slots": 1, "lease_s": LEASE_S, "version": "0"}
    return lambda over: register(over, study, uuid=uuid, **given)


def draining(database: Database) -> Call:
    study, request = new_study(database), new_request()
    uuid = token()
    register(database, study, uuid=uuid, process=process(), slots=1, lease_s=LEASE_S, version="0")
    worker = find_worker(database, uuid)
    # Whoever sends it again finds the worker alive, for it is itself.
    return lambda over: drain(over, replace(worker, process=this_process()), request)


def leaving(database: Database) -> Call:
    worker = SimulatedWorker(database, new_study(database))
    return lambda over: leave(over, worker_id=worker.id)


def reporting(database: Database) -> Call:
    return _reporting(new_study(database), database, results(0.5, 0.4))


def reporting_at_a_rung(database: Database) -> Call:
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    SimulatedWorker(database, study).take().report(0.1)
    return _reporting(study, database, results(0.5))


def reporting_the_end(database: Database) -> Call:
    study = new_study(database, rules=read_rules(["loss<0.2"]))
    return _reporting(study, database, results(0.5, 0.1, 0.05))


def reporting_again_after_a_loss(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.9, 0.8)
    run.finish(outcome=Reason.PREEMPTED)
    return _reporting(study, database, results(0.7))


def _reporting(study: Any, database: Database, rows: Any) -> Call:
    run = SimulatedWorker(database, study).take()
    batch = Batch(1, rows, before=run.summary)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def completing(database: Database) -> Call:
    return _finishing(database, Reason.COMPLETED)


def failing(database: Database) -> Call:
    return _finishing(database, Reason.FAILED, max_failures=2)


def failing_as_the_fifth(database: Database) -> Call:
    """The study pauses itself in the same transaction."""
    study = new_study(database, num_trials=20)
    worker, cause = SimulatedWorker(database, study), Failure("KeyError", "'lr'")
    for _ in range(4):
        worker.take().finish(outcome=Reason.FAILED, failure=cause)
    run = worker.take()
    given: Any = {"lease": run.lease, "outcome": Reason.FAILED, "batch": run.batch()}
    return lambda over: finish(over, study, **given, failure=cause)


def failing_by_content(database: Database) -> Call:
    """What it reported cannot be stored."""
    study = new_study(database, max_failures=2)
    run = SimulatedWorker(database, study).take()
    given: Any = {"lease": run.lease, "flush_no": 1, "failure": Failure("ValueError", "no number")}
    return lambda over: fail(over, study, **given)


def completing_at_rungs(database: Database) -> Call:
    return _finishing(database, Reason.COMPLETED, scheduler=ASHA(max_t=9, reduction_factor=3))


def releasing(database: Database) -> Call:
    return _finishing(database, Reason.PREEMPTED, max_concurrent=3)


def completing_at_once(database: Database) -> Call:
    """What was flushed before is known here, so that one statement may do."""
    return _finishing(database, Reason.COMPLETED, knows=True)


def _finishing(
    database: Database, outcome: Reason, *, knows: bool = False, **overrides: Any
) -> Call:
    study = new_study(database, **overrides)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    given: Any = {"lease": run.lease, "outcome": outcome, "batch": run.batch(0.4, 0.3)}
    tally = run.tally if knows else None
    return lambda over: finish(over, study, **given, tally=tally)


def summing_up(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.finish(0.4, 0.3)
    change(database, "UPDATE trial SET metric_summary = NULL")
    return lambda over: after_end(over, study, trial_id=run.lease.trial_id)


def saving(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    for _ in range(2):
        run.report(0.5)
        run.save()
    run.report(0.4)
    what = run.checkpoint()
    return lambda over: save(over, lease=run.lease, checkpoint=what, data=b"abc")


def marking_corrupt(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    run.report(0.5)
    run.save()
    with database.begin(write=False) as txn:
        saved = checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id)
    return lambda over: mark_corrupt(over, lease=run.lease, checkpoint=saved)


def telling(database: Database) -> Call:
    run, once = SimulatedWorker(database, new_study(database)).take(), str(uuid4())
    return lambda over: record_event(over, lease=run.lease, kind="disk full", data={}, token=once)


def renewing(database: Database) -> Call:
    worker = SimulatedWorker(database, new_study(database))
    run = worker.take()
    return lambda over: renew(over, worker_id=worker.id, held=[run.lease])


FINISHES = (
    completing,
    completing_at_once,
    completing_at_rungs,
    failing,
    failing_as_the_fifth,
    failing_by_content,
    releasing,
)
"""A finish that is sent again answers None: it has ended."""

OPERATIONS = (
    claiming,
    claiming_the_last,
    claiming_the_last_place,
    claiming_from_a_checkpoint,
    asking,
    asking_for_the_last,
    asking_for_the_last_place,
    claiming_or_asking,
    enqueueing,
    enqueueing_the_last,
    extending,
    pausing_the_study,
    resuming_the_study,
    pausing_a_waiting_one,
    pausing_a_running_one,
    stopping_a_waiting_one,
    stopping_a_running_one,
    resuming,
    creating,
    renaming,
    relocating,
    revising,
    registering,
    draining,
    leaving,
    reporting,
    reporting_at_a_rung,
    reporting_the_end,
    reporting_again_after_a_loss,
    *FINISHES,
    saving,
    marking_corrupt,
    telling,
    renewing,
    summing_up,
)
