"""Pause a study because trials have failed, or because the user's code did not decide."""

from studydb.db import Txn
from studydb.domain.deciding import Undecided
from studydb.domain.failures import Failure
from studydb.domain.life.alike_failures import MAX_ALIKE, fingerprint, pause_reason, short_text
from studydb.domain.life.custom_rule import RuleFailure
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import Lease, Study
from studydb.store import events, results, studies


def pause_after_failure(
    txn: Txn, study: Study, *, lease: Lease, outcome: Reason, failure: Failure | None
) -> None:
    """
    Pause the study if `fail_fast` is set, or if trials have failed alike (`pause_if_alike`).

    Args:
        outcome: How the attempt has ended: FAILED, or LOST if the loss has ended the trial.
    """
    if study.fail_fast:
        what = "lost too often" if failure is None else short_text(failure)
        why = f"fail_fast is set, and trial {lease.number} has failed: {what}"
        _pause(txn, study, DecidedBy.FAIL_FAST, Actor.FAIL_FAST, {"reason": why})
    elif outcome is Reason.FAILED and failure is not None:
        pause_if_alike(txn, study, lease=lease, failure=failure)


def pause_if_alike(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> None:
    """
    Pause the study if `MAX_ALIKE` trials have failed alike and no trial has ever reported.

    A study whose setting `guard` is off is not paused. Failures from before the study was last
    resumed do not count. The failures are read under the lock of the study's row, so that
    concurrent failures are counted in turn. Only the newest 200 events are searched, so the cost
    does not grow with the study.
    """
    if not study.guard or results.any_of_study(txn, study_id=study.id):
        return
    if studies.locked_status(txn, study_id=study.id) is not Status.RUNNING:
        return

    known = fingerprint(failure)
    failed = events.failures_since_resumption(txn, study_id=study.id)
    alike = {lease.trial_id, *(one.trial_id for one in failed if one.fingerprint == known)}
    if len(alike) >= MAX_ALIKE:
        why = pause_reason(failure, len(alike))
        _pause(txn, study, DecidedBy.GUARD, Actor.GUARD, {"reason": why})


def pause_after_rule(txn: Txn, study: Study, *, lease: Lease, failure: RuleFailure) -> None:
    """
    Pause the study because a custom stop rule did not decide on a result.

    The trials that run go on, and the rule is asked again at their next results.
    """
    why = f"on trial {lease.number} at step {failure.step}, {failure.why}"
    data = {"reason": why, "traceback": failure.traceback}
    _pause(txn, study, DecidedBy.RULE, Actor.RULE, data, lease=lease)


def pause_after_scheduler(
    txn: Txn, study: Study, undecided: Undecided, *, lease: Lease | None = None, step: int = 0
) -> None:
    """
    Pause the study because its custom scheduler did not decide; trials that run go on.

    Args:
        lease, step: The attempt, and its step that the scheduler failed to judge. `lease` is None
            if the scheduler was asked for work, not for a judgement.
    """
    where = "" if lease is None else f"on trial {lease.number} at step {step}, "
    data = {"reason": where + undecided.why, "traceback": undecided.traceback}
    _pause(txn, study, DecidedBy.SCHEDULER, Actor.SCHEDULER, data, lease=lease)


def pause_after_requests(txn: Txn, study: Study, why: str, *, traceback: str = "") -> None:
    """Pause the study because a trial's request for resources is unknown or cannot be stored."""
    data = {"reason": why, "traceback": traceback}
    _pause(txn, study, DecidedBy.REQUESTS, Actor.RESOURCE_FUNCTION, data)


def _pause(
    txn: Txn,
    study: Study,
    by: DecidedBy,
    actor: Actor,
    data: dict[str, str],
    *,
    lease: Lease | None = None,
) -> None:
    if studies.pause_itself(txn, study_id=study.id, by=by, why=data["reason"]):
        kind = EventKind.STUDY_PAUSED
        events.append(txn, study_id=study.id, lease=lease, kind=kind, actor=actor, data=data)
