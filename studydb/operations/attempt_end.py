"""The end of an attempt, in the transaction of a finish, a failure or a recovery."""

from collections.abc import Sequence

from msgspec import Struct, structs

from studydb.db import Txn
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.failures import Failure
from studydb.domain.life.alike_failures import fingerprint
from studydb.domain.life.decisions import DecidedBy, Verdict
from studydb.domain.life.ending import (
    Ending,
    RetryLimits,
    TrialFacts,
    decide_ending,
    final_verdict,
    requested_verdict,
    verdict_of_completed,
)
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import FINAL, Reason, State, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Lease, Study
from studydb.domain.tally import Analysis, Tally
from studydb.operations import summing
from studydb.operations.flushing import Flushed
from studydb.operations.guard import pause_after_failure
from studydb.operations.retrying import judge_exit, judge_failure, stuck_note
from studydb.operations.ruling import carry_out
from studydb.operations.spending import Charge, charge
from studydb.store import attempts, counters, events, leases, pins, promotions, studies
from studydb.store.leases import Held


def decide(study: Study, outcome: Reason, facts: TrialFacts) -> Ending:
    """Decide a trial's state after an attempt, by the study's `max_failures` and `max_losses`."""
    return decide_ending(outcome, facts, RetryLimits(study.max_failures, study.max_losses))


def known_analysis(
    study: Study, tally: Tally | None, stored: Sequence[Result], summary: Summary
) -> Analysis | None:
    """Sum up the tally and the new results; None if the trial has further results."""
    tally = tally or Tally(study.objective.metric)
    if tally.n_results + len(stored) != summary.n_results:
        return None
    return tally.analysis(stored)


class Ended(Struct, frozen=True):
    """A trial's ending, and whether its results are too many to sum up in this transaction."""

    ending: Ending
    unsummed: bool


def end_attempt(
    txn: Txn,
    study: Study,
    flushed: Flushed,
    *,
    lease: Lease,
    outcome: Reason,
    flush_no: int,
    tally: Tally | None = None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
    actor: Actor = Actor.WORKER,
    summed: bool = True,
) -> Ended:
    """
    Decide a held trial's next state; store its attempt's end, the counters and the spending.

    Args:
        summed: Whether to sum up the trial's metrics; False if the database refused their values.
    """
    held = flushed.held
    if held.source_checkpoint_id is not None:
        pins.lock(txn, trial_id=lease.trial_id)  # lock order: checkpoints before the study
    charged = _charge(txn, study, flushed, lease=lease, actor=actor)
    known = flushed.verdict or held.verdict
    if outcome is not Reason.COMPLETED:
        known = charged.within_time(lease.trial_id, known)
    verdict = _verdict(known, _requested(txn, study, held, charged), outcome)
    outcome, facts = _facts(
        txn, study, held, verdict, lease=lease, outcome=outcome, failure=failure
    )
    ending = decide(study, outcome, facts)
    if failure is not None and ending.state is State.ERROR:
        failure = structs.replace(failure, message=failure.message + facts.note)

    to_sum_up = summed and ending.reason is not None and flushed.summary.n_results > 0
    analysis = _sum_up(txn, study, flushed, lease=lease, tally=tally) if to_sum_up else None
    leases.end(
        txn,
        trial_id=lease.trial_id,
        ending=ending,
        summary=flushed.summary,
        time_total_s=flushed.time_total_s,
        metric_summary=analysis,
    )
    if ending.state in FINAL and study.scheduler.resumes:
        promotions.leave_rungs(txn, study_id=study.id, trial_id=lease.trial_id)
    if ending.state in FINAL and held.source_checkpoint_id is not None:
        pins.release(txn, trial_ids=[lease.trial_id])
    attempts.end(
        txn,
        lease=lease,
        flush_no=flush_no,
        reason=ending.attempt_reason,
        verdict=verdict,
        failure=failure,
        process=process,
    )
    if outcome in (Reason.FAILED, Reason.LOST):
        _record_outcome(txn, lease, outcome, failure, actor)
    if outcome is Reason.FAILED or ending.state is State.ERROR:
        pause_after_failure(txn, study, lease=lease, outcome=outcome, failure=failure)
    carry_out(txn, study, flushed, lease=lease)

    if study.max_concurrent is not None:
        studies.leave(txn, study_id=study.id)
    counters.move(txn, study_id=study.id, key=lease.token, out_of=State.RUNNING, into=ending.state)
    charged.store(txn, study, key=lease.token)
    return Ended(ending, unsummed=to_sum_up and analysis is None)


def _charge(txn: Txn, study: Study, flushed: Flushed, *, lease: Lease, actor: Actor) -> Charge:
    return charge(
        txn,
        study,
        trial_ids=[lease.trial_id],
        lease=lease,
        results=flushed.stored,
        are_alive=actor is not Actor.SWEEP,
        are_valid=not flushed.held.is_invalidated,
    )


def _facts(
    txn: Txn,
    study: Study,
    held: Held,
    verdict: Verdict | None,
    *,
    lease: Lease,
    outcome: Reason,
    failure: Failure | None,
) -> tuple[Reason, TrialFacts]:
    """Return the outcome that counts, and the facts that decide about the trial's next state."""
    outcome, delay_s = judge_exit(txn, lease=lease, outcome=outcome, failure=failure)
    counting, failure_delay_s = judge_failure(
        txn, study, lease=lease, outcome=outcome, failure=failure
    )
    note = ""
    if outcome is Reason.LOST and failure is not None:
        note = stuck_note(txn, study, lease=lease, failure=failure)
    return outcome, TrialFacts(
        held.failures,
        held.losses,
        verdict,
        note=note,
        delay_s=delay_s or failure_delay_s,
        counting=counting,
    )


def _sum_up(
    txn: Txn, study: Study, flushed: Flushed, *, lease: Lease, tally: Tally | None
) -> Analysis | None:
    """Sum up the trial's metrics; None if its results are too many for this transaction."""
    known = known_analysis(study, tally, flushed.stored, flushed.summary)
    if known is not None:
        return known
    n_results = flushed.summary.n_results
    return summing.in_transaction(txn, study, trial_id=lease.trial_id, n_results=n_results)


def _verdict(known: Verdict | None, requested: Verdict | None, outcome: Reason) -> Verdict | None:
    """Return the verdict that the end of the attempt carries out."""
    if outcome is Reason.COMPLETED:
        return verdict_of_completed(known, requested)
    return final_verdict(known, requested)


def _requested(txn: Txn, study: Study, held: Held, charged: Charge) -> Verdict | None:
    """
    Read the verdict that people, or a limit of the study, request for a trial whose attempt ends.

    If the request comes from the study's status, the study's row is locked and read again. If a
    person has resumed the study before this lock, the new status is read here. If a person resumes
    the study later, the resumption waits for the lock. The resumption's next transaction then finds
    the trial PAUSED, and moves it to PENDING.
    """
    status = Status.SPENT if charged.is_spent else held.status
    requested = requested_verdict(held.request, status)
    if requested is None or requested.by is not DecidedBy.STUDY:
        return requested
    status = studies.locked_status_for_running_trials(txn, study_id=study.id)
    return requested_verdict(held.request, status)


def _record_outcome(
    txn: Txn, lease: Lease, outcome: Reason, failure: Failure | None, actor: Actor
) -> None:
    cause = {"type": failure.type, "message": failure.message} if failure else None
    if cause and failure and outcome is Reason.FAILED:
        cause["fingerprint"] = fingerprint(failure)
    kind = EventKind(outcome.lower())
    events.append(txn, study_id=lease.study_id, lease=lease, kind=kind, actor=actor, data=cause)
