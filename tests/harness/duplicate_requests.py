"""
Operations, each arranged so that one call can be sent again, over any connection.

Each function prepares a database and returns the call. If the call sends a token or a flush
number, it sends the same one each time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from msgspec import structs

from harness import custom_scheduler_requests, fitting_requests, rung_requests
from harness.arrange import (
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_spec,
    new_study,
    register_worker,
    results,
    token,
)
from harness.control_requests import ENDS_OF_ATTEMPTS, REQUESTS_OF_PEOPLE, Arranged, Call
from harness.model_searcher import ModelSearch
from harness.settings_requests import relocate, revise, set_limits
from harness.upload_requests import UPLOADS
from studydb.db import Database
from studydb.domain.failures import Failure
from studydb.domain.life.custom_rule import CustomRule, RuleDecision, RuleFailure
from studydb.domain.life.ending import FREE_EXITS, GIVEN_BACK, TRY_LATER
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Origin, Reason, Status
from studydb.domain.limits import CostLimit
from studydb.domain.records import Batch, Study
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations import control, proposer
from studydb.operations.ask import ask
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.claim import claim
from studydb.operations.create import create
from studydb.operations.drain import drain, find_worker
from studydb.operations.enqueue import enqueue
from studydb.operations.fail import fail
from studydb.operations.finish import finish
from studydb.operations.proposer import Point
from studydb.operations.record_event import record_event, record_model_failure
from studydb.operations.register import leave
from studydb.operations.rename import rename
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.operations.save import save
from studydb.operations.summing import after_end
from studydb.processes import this_process
from studydb.schedulers import ASHA
from studydb.store import checkpoints


def claiming(database: Database, *, waiting: int = 2, **overrides: Any) -> Call:
    study = new_study(database, **overrides)
    for _ in range(waiting):
        enqueued(database, study)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant)


def _claiming_from_a_checkpoint(database: Database) -> Call:
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.PREEMPTED)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant)


def asking(database: Database, **overrides: Any) -> Call:
    study = _study_with_proposals(database, **overrides)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: ask(over, study, claimant)


def _asking_for_the_first_trial(database: Database) -> Call:
    """The call also stores proposals."""
    study = new_study(database)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: ask(over, study, claimant)


def _asking_past_a_duplicate(database: Database) -> Call:
    """Params must be unique, so the ask skips the next draw, whose params a trial already has."""
    call = asking(database)
    change(database, "UPDATE trial SET is_unique = (1 = 1)")
    hash_of_the_trial = "SELECT params_hash FROM trial WHERE study_id = proposal.study_id"
    change(
        database,
        f"UPDATE proposal SET is_unique = (1 = 1), params_hash = ({hash_of_the_trial}) "
        "WHERE draw = 1 AND study_id = (SELECT max(id) FROM study)",
    )
    return call


def _claiming_without_a_config(database: Database) -> Call:
    """The trials are like those of a version of studydb that stored no configs."""
    call = claiming(database)
    change(database, "UPDATE trial SET config = NULL")
    return call


def _study_with_proposals(database: Database, **overrides: Any) -> Study:
    """A study whose first ask has stored the proposals for the next asks."""
    study = new_study(database, **overrides)
    SimulatedWorker(database, study).take().finish(0.5)
    return study


def _claiming_or_asking(database: Database) -> Call:
    study = _study_with_proposals(database, num_trials=2)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: claim(over, study, claimant) or ask(over, study, claimant)


def _enqueueing(database: Database, **overrides: Any) -> Call:
    study, request = new_study(database, **overrides), new_request()
    return lambda over: enqueue(over, study, {"lr": 0.5}, request)


def _enqueueing_with_a_name(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: enqueue(over, study, {}, request, name="first", tags=["old", "a b"])


def _extending(database: Database) -> Call:
    study, request = new_study(database, num_trials=10), new_request()
    return lambda over: control.extend(over, study, request, n_more=5)


def _pausing_the_study(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: control.set_status(over, study, Status.PAUSED, request)


def _resuming_the_study(database: Database) -> Call:
    study, request = new_study(database), new_request()
    run = SimulatedWorker(database, study).take()
    control.set_status(database, study, Status.PAUSED, new_request())
    run.finish(outcome=Reason.PREEMPTED)
    return lambda over: control.set_status(over, study, Status.RUNNING, request)


def _steering(
    operation: Callable[..., None], database: Database, *, is_running: bool = False
) -> Call:
    study, request = new_study(database), new_request()
    numbers = [enqueued(database, study) for _ in range(2)]
    if is_running:
        SimulatedWorker(database, study).take()
    return lambda over: operation(over, study, numbers, request)


def _resuming_a_trial(database: Database) -> Call:
    study, request = new_study(database), new_request()
    number = enqueued(database, study)
    control.pause(database, study, [number], new_request())
    return lambda over: control.resume(over, study, [number], request)


def _creating(_database: Database) -> Call:
    spec = new_spec(scheduler=ASHA(max_t=9))
    return lambda over: create(over, spec)


def _renaming(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: rename(over, study, f"{study.name} again", request)


def _relocating(database: Database) -> Call:
    study, request = new_study(database, checkpoints="file:///first"), new_request()
    relocate(database, study, "file:///second", new_request())
    return lambda over: relocate(over, study, "inline:", request)


def _revising(database: Database) -> Call:
    first, second = (
        Trainable(
            str(uuid4()), TrainableKind.IMPORT, name, "/nowhere", "3.11", None, {"key": "mac"}
        )
        for name in ("first:train", "second:train")
    )
    study, request = new_study(database, trainable=first), new_request()
    return lambda over: revise(over, study, second, request)


def _registering(database: Database) -> Call:
    study, uuid = new_study(database), token()
    return lambda over: register_worker(over, study, uuid=uuid)


def _draining(database: Database) -> Call:
    study, request, uuid = new_study(database), new_request(), token()
    register_worker(database, study, uuid=uuid)
    # The worker's process must be alive, so this process is used.
    worker = structs.replace(find_worker(database, uuid), process=this_process())
    return lambda over: drain(over, worker, request)


def _leaving(database: Database) -> Call:
    worker = SimulatedWorker(database, new_study(database))
    return lambda over: leave(over, worker_id=worker.id)


def _reporting(
    database: Database,
    *,
    values: tuple[float, ...] = (0.5, 0.4),
    study: Study | None = None,
    done: bool = False,
    ruled: RuleDecision | None = None,
    **overrides: Any,
) -> Call:
    study = study or new_study(database, **overrides)
    run = SimulatedWorker(database, study).take()
    batch = Batch(1, results(*values, done=done), before=run.summary, ruled=ruled)
    return lambda over: report(over, study, lease=run.lease, batch=batch)


def _reporting_in_a_second_attempt(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.9, 0.8)
    run.finish(outcome=Reason.PREEMPTED)
    return _reporting(database, values=(0.7,), study=study)


def _finishing(
    database: Database,
    outcome: Reason = Reason.COMPLETED,
    *,
    with_tally: bool = False,
    done: bool = False,
    failure: Failure | None = None,
    **overrides: Any,
) -> Call:
    """Finish an attempt; PostgreSQL does it in a single statement only if the call has a tally."""
    study = new_study(database, **overrides)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    given: Any = {"lease": run.lease, "outcome": outcome, "batch": run.batch(0.4, 0.3, done=done)}
    tally = run.tally if with_tally else None
    return lambda over: finish(over, study, **given, tally=tally, failure=failure)


def _giving_back_once_too_often(database: Database) -> Call:
    """
    The call ends the tenth attempt in a row whose command gives the trial back.

    This end counts as a loss.
    """
    study = new_study(database, num_trials=1)
    worker, failure = SimulatedWorker(database, study), Failure(GIVEN_BACK, "130")
    for _ in range(FREE_EXITS):
        worker.take().finish(outcome=Reason.PREEMPTED, failure=failure)
    run = worker.take()
    given: Any = {"lease": run.lease, "outcome": Reason.PREEMPTED, "batch": run.batch(0.4)}
    return lambda over: finish(over, study, **given, failure=failure)


def _failing_like_four_others(database: Database) -> Call:
    """The transaction that stores the fifth of five alike failures also pauses the study."""
    study = new_study(database, num_trials=20)
    worker, cause = SimulatedWorker(database, study), Failure("KeyError", "'lr'")
    for _ in range(4):
        worker.take().finish(outcome=Reason.FAILED, failure=cause)
    run = worker.take()
    given: Any = {"lease": run.lease, "outcome": Reason.FAILED, "batch": run.batch()}
    return lambda over: finish(over, study, **given, failure=cause)


def _reaching_a_limit(database: Database) -> Call:
    """The transaction that stores the report also stops the study."""
    limits: Any = {"cost_limit": CostLimit("loss", 0.75), "total_time_limit_s": 1e6}
    study = new_study(database, **limits)
    SimulatedWorker(database, study).take().report(0.5)
    return _reporting(database, study=study)


_LONG_AGO = "UPDATE study SET started_at = '2001-01-01 00:00:00+00:00'"
"""Makes every study older than its `time_limit_s`."""


def _renewing_past_a_limit(database: Database) -> Call:
    """The renewal stops the trial and the study, which have reached their time limits."""
    call = _renewing(database, trial_time_limit_s=60.0, total_time_limit_s=60.0, time_limit_s=60.0)
    change(database, "UPDATE trial SET running_s = 100")
    change(database, _LONG_AGO)
    return call


def _claiming_in_an_old_study(database: Database) -> Call:
    """The call stops the study, and claims no trial."""
    study = new_study(database, time_limit_s=60.0)
    enqueued(database, study)
    claimant = SimulatedWorker(database, study).claimant()
    change(database, _LONG_AGO)
    return lambda over: claim(over, study, claimant)


def _setting_limits(database: Database) -> Call:
    study, request = new_study(database, max_steps=5), new_request()
    return lambda over: set_limits(over, study, {"max_steps": 9}, request)


def _failing_fast(database: Database) -> Call:
    study = new_study(database, fail_fast=True)
    run = SimulatedWorker(database, study).take()
    given: Any = {"lease": run.lease, "outcome": Reason.FAILED, "batch": run.batch()}
    return lambda over: finish(over, study, **given, failure=Failure("KeyError", "'lr'"))


def _failing_by_content(database: Database) -> Call:
    """The call ends an attempt whose results cannot be stored, because of their content."""
    study = new_study(database, max_failures=2)
    run = SimulatedWorker(database, study).take()
    given: Any = {"lease": run.lease, "flush_no": 1, "failure": Failure("ValueError", "no number")}
    return lambda over: fail(over, study, **given)


def _summing_up(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.finish(0.4, 0.3)
    change(database, "UPDATE trial SET metric_summary = NULL")
    return lambda over: after_end(over, study, trial_id=run.lease.trial_id)


def _saving(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    for _ in range(2):
        run.report(0.5)
        run.save()
    run.report(0.4)
    checkpoint = run.checkpoint()
    return lambda over: save(over, lease=run.lease, checkpoint=checkpoint, data=b"abc")


def _marking_corrupt(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    run.report(0.5)
    run.save()
    with database.begin(write=False) as txn:
        saved = checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id)
    return lambda over: mark_corrupt(over, lease=run.lease, checkpoint=saved)


def _recording_an_event(database: Database) -> Call:
    run, once = SimulatedWorker(database, new_study(database)).take(), str(uuid4())
    return lambda over: record_event(over, lease=run.lease, kind="disk full", data={}, token=once)


def _recording_a_model_failure(database: Database) -> Call:
    study, once = new_study(database), str(uuid4())
    worker_id = SimulatedWorker(database, study).id
    return lambda over: record_model_failure(
        over, study, worker_id=worker_id, error="broken", token=once
    )


def _renewing(database: Database, **overrides: Any) -> Call:
    study = new_study(database, **overrides)
    worker = SimulatedWorker(database, study)
    run = worker.take()
    return lambda over: renew(over, study, worker_id=worker.id, held=[run.lease])


LEASE_OF_PROPOSER_S = 8.0

POINTS = [Point({"lr": rate}, Origin.SEARCHER) for rate in (0.1, 0.2)]


def _taking_the_lease(database: Database) -> Call:
    study, once = new_study(database, searcher=ModelSearch()), token()
    given: Any = {"token": once, "worker_id": 1, "lease_s": LEASE_OF_PROPOSER_S}
    return lambda over: proposer.take_lease(over, study, **given)


def _with_lease(
    operation: Callable[..., Any], database: Database, *points: Any, **given: Any
) -> Call:
    """An operation of the process that has the proposer's lease."""
    study, once = new_study(database, searcher=ModelSearch()), token()
    proposer.take_lease(database, study, token=once, worker_id=1, lease_s=LEASE_OF_PROPOSER_S)
    return lambda over: operation(over, study, *points, token=once, **given)


def _storing_by_index(database: Database) -> Call:
    """The call stores a point only if it finds no proposal for the next draw."""
    study = new_study(database, searcher=ModelSearch())

    def call(over: Database) -> None:
        seen = proposer.look(over, study, token="", if_nothing_waits=False)
        if seen is not None and not seen.is_proposed:
            proposer.store_by_index(over, study, lambda _: POINTS, draw=seen.draw)

    return call


def _ending_the_draws(database: Database) -> Call:
    study = new_study(database, searcher=ModelSearch())
    return lambda over: proposer.end_draws(over, study)


FINISHES: dict[str, Arranged] = {
    **custom_scheduler_requests.FINISHES,
    **rung_requests.FINISHES,
    "finish": _finishing,
    "finish_in_a_single_statement": partial(_finishing, with_tally=True),
    "finish_of_a_trial_that_is_done": partial(_finishing, with_tally=True, done=True),
    "finish_at_rungs": partial(_finishing, scheduler=ASHA(max_t=9, reduction_factor=3)),
    **ENDS_OF_ATTEMPTS,
    "fail": partial(_finishing, outcome=Reason.FAILED, max_failures=2),
    "fail_like_four_others": _failing_like_four_others,
    "fail_fast": _failing_fast,
    "finish_with_limits": partial(_finishing, max_steps=2, trial_time_limit_s=60.0),
    "fail_by_content": _failing_by_content,
    "release": partial(_finishing, outcome=Reason.PREEMPTED, max_concurrent=3),
    "give_back": partial(_finishing, outcome=Reason.PREEMPTED, failure=Failure(TRY_LATER, "75")),
    "give_back_once_too_often": _giving_back_once_too_often,
}
"""A duplicate request of these operations returns None."""

CUSTOM = CustomRule("my_rules:TooSlow")

OPERATIONS: dict[str, Arranged] = {
    "take_lease": _taking_the_lease,
    "renew_lease": partial(_with_lease, proposer.renew_lease, lease_s=LEASE_OF_PROPOSER_S),
    "release_lease": partial(_with_lease, proposer.release_lease, no_point_left=True),
    "store_block": lambda database: _with_lease(proposer.store_block, database, POINTS),
    "store_by_index": _storing_by_index,
    "end_draws": _ending_the_draws,
    "claim": claiming,
    "claim_the_last_trial": partial(claiming, waiting=1),
    "claim_with_max_concurrent": partial(claiming, max_concurrent=1),
    "claim_from_a_checkpoint": _claiming_from_a_checkpoint,
    "claim_without_a_config": _claiming_without_a_config,
    "ask": asking,
    "ask_for_the_first_trial": _asking_for_the_first_trial,
    "ask_past_a_duplicate": _asking_past_a_duplicate,
    "ask_for_the_last_trial": partial(asking, num_trials=2),
    "ask_with_max_concurrent": partial(asking, max_concurrent=1),
    "claim_or_ask": _claiming_or_asking,
    "enqueue": _enqueueing,
    "enqueue_with_a_name": _enqueueing_with_a_name,
    "enqueue_the_last_trial": partial(_enqueueing, num_trials=1),
    "extend": _extending,
    "pause_the_study": _pausing_the_study,
    "resume_the_study": _resuming_the_study,
    **REQUESTS_OF_PEOPLE,
    **fitting_requests.REQUESTS,
    "pause_pending_trials": partial(_steering, control.pause),
    "pause_a_running_trial": partial(_steering, control.pause, is_running=True),
    "stop_pending_trials": partial(_steering, control.stop),
    "stop_a_running_trial": partial(_steering, control.stop, is_running=True),
    "resume_a_trial": _resuming_a_trial,
    **rung_requests.OPERATIONS,
    "create": _creating,
    "rename": _renaming,
    "relocate": _relocating,
    "revise": _revising,
    "register": _registering,
    "drain": _draining,
    "leave": _leaving,
    "report": _reporting,
    "report_that_a_rule_stops": partial(
        _reporting, values=(0.5, 0.1, 0.05), rules=read_rules(["loss<0.2"])
    ),
    "report_that_a_custom_rule_stops": partial(
        _reporting, rules=(CUSTOM,), ruled=RuleDecision(2, str(CUSTOM), "too slow")
    ),
    "report_whose_custom_rule_fails": partial(
        _reporting, rules=(CUSTOM,), ruled=RuleDecision(failure=RuleFailure(2, "it hangs"))
    ),
    **custom_scheduler_requests.REPORTS,
    "report_that_completes_the_trial": partial(_reporting, done=True),
    "report_in_a_second_attempt": _reporting_in_a_second_attempt,
    **FINISHES,
    "save": _saving,
    **UPLOADS,
    "mark_corrupt": _marking_corrupt,
    "record_event": _recording_an_event,
    "record_model_failure": _recording_a_model_failure,
    "report_that_reaches_a_limit": _reaching_a_limit,
    "renew": _renewing,
    "renew_past_a_limit": _renewing_past_a_limit,
    "claim_in_an_old_study": _claiming_in_an_old_study,
    "set_limits": _setting_limits,
    "sum_up": _summing_up,
}
"""For each case of each operation: the function that arranges the call."""
