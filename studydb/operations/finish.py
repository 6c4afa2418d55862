"""End an attempt, with its last flush: completed, failed, released, lost, or as a verdict wants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from studydb.db import Database, Txn
from studydb.domain.life.alike_failures import fingerprint
from studydb.domain.life.decisions import DecidedBy, Verdict
from studydb.domain.life.ending import (
    Ending,
    Limits,
    Standing,
    conclude,
    settle,
    settle_completed,
    wanted,
)
from studydb.domain.life.states import Reason, State
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import AttemptProcess, Batch, Failure, Lease, Study
from studydb.domain.tally import Analysis, Tally
from studydb.operations import summing
from studydb.operations.flushing import Flushed, foresee, lock_rungs, refused, store_batch
from studydb.operations.guard import pause_if_alike
from studydb.operations.stuck import explanation, stuck_after
from studydb.store import at_once, attempts, counters, events, leases, studies
from studydb.store.leases import Held


def finish(
    database: Database,
    study: Study,
    *,
    lease: Lease,
    outcome: Reason,
    batch: Batch,
    tally: Tally | None = None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
) -> Ending | None:
    """
    End an attempt and move its trial where the attempt's end leaves it.

    Results that came after a verdict are dropped; those before it are flushed here.

    Args:
        outcome: COMPLETED; FAILED (the user's code raised); LOST (it died); PREEMPTED (released,
            which spends nothing); TIMED_OUT.
        tally: Of the trial's results before this batch, if all are known here.

    Returns:
        Where the trial went; None when an earlier send of this finish has committed.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    if outcome is Reason.COMPLETED and study.max_concurrent is None:
        ending = _complete(database, study, lease, batch, tally=tally, process=process)
        if ending is not None:
            return ending

    with database.begin() as txn:
        locked = lock_rungs(txn, study, lease=lease, batch=batch)
        held = leases.hold(txn, lease=lease)
        if held is None:
            refused(txn, lease=lease, flush_no=batch.flush_no)
            ended = None
        else:
            if held.refuses_results or held.flush_no >= batch.flush_no:
                stored = Flushed((), held.summary, held.time_total_s, None)
            else:
                stored = store_batch(txn, study, held, lease=lease, batch=batch, locked=locked)
            ended = end_attempt(
                txn,
                study,
                held,
                lease=lease,
                outcome=outcome,
                flushed=stored,
                flush_no=batch.flush_no,
                tally=tally,
                failure=failure,
                process=process,
            )
    if ended is None or ended.unsummed:
        summing.after_end(database, study, trial_id=lease.trial_id)
    return None if ended is None else ended.ending


def _complete(
    database: Database,
    study: Study,
    lease: Lease,
    batch: Batch,
    *,
    tally: Tally | None,
    process: AttemptProcess | None,
) -> Ending | None:
    """Complete a trial whose results are all known here, in one statement, if that is all."""
    summary = foresee(study, batch)
    if summary is None:
        return None
    analysis = _known(study, tally, batch.results, summary)
    if analysis is None:
        return None
    with database.begin(single=True) as txn:
        row = at_once.finish(
            txn,
            lease=lease,
            batch=batch,
            summary=summary,
            metric_summary=analysis or None,
            process=process,
        )
    if row is None:
        return None
    standing = Standing(row.failures, row.losses, verdict=None)
    return conclude(Reason.COMPLETED, standing, Limits(study.max_failures, study.max_losses))


def _known(
    study: Study, tally: Tally | None, stored: Sequence[Result], summary: Summary
) -> Analysis | None:
    """What a tally of all results before says with those that are stored now; None if not all."""
    tally = tally or Tally(study.objective.metric)
    if tally.n_results + len(stored) != summary.n_results:
        return None
    return tally.analysis(stored)


@dataclass(frozen=True, slots=True)
class Ended:
    """
    How an attempt's end was stored.

    Attributes:
        unsummed: Whether the trial has too many results to sum up their metrics in the transaction.
    """

    ending: Ending
    unsummed: bool


def end_attempt(
    txn: Txn,
    study: Study,
    held: Held,
    *,
    lease: Lease,
    outcome: Reason,
    flushed: Flushed,
    flush_no: int,
    tally: Tally | None = None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
    actor: str = "worker",
    summed: bool = True,
) -> Ended:
    """
    Move a held trial out of RUNNING and close its attempt; the counts follow.

    Args:
        summed: Whether its metrics are summed up; not where that has failed.
    """
    settled = settle_completed if outcome is Reason.COMPLETED else settle
    verdict = settled(flushed.verdict or held.verdict, _asked(txn, study, held))
    note = ""
    if outcome is Reason.LOST and failure is not None:
        step = stuck_after(txn, study, lease=lease, failure=failure)
        note = "" if step is None else explanation(failure, study, step=step)
    ending = conclude(
        outcome,
        Standing(held.failures, held.losses, verdict, note=note),
        Limits(study.max_failures, study.max_losses),
    )
    if failure is not None and ending.state is State.ERROR:  # not of one that was to pause
        failure = replace(failure, message=failure.message + note)

    analysis, n_results = None, flushed.summary.n_results
    to_sum_up = summed and ending.reason is not None and n_results > 0
    if to_sum_up:
        analysis = _known(study, tally, flushed.stored, flushed.summary)
        if analysis is None:
            analysis = summing.in_transaction(
                txn, study, trial_id=lease.trial_id, n_results=n_results
            )
    leases.end(
        txn,
        trial_id=lease.trial_id,
        ending=ending,
        summary=flushed.summary,
        time_total_s=flushed.time_total_s,
        metric_summary=analysis,
    )
    attempts.end(
        txn,
        lease=lease,
        flush_no=flush_no,
        reason=ending.attempt_reason,
        verdict=verdict,
        failure=failure,
        process=process,
    )
    if outcome in (Reason.FAILED, Reason.LOST, Reason.TIMED_OUT):
        _tell(txn, lease, outcome, failure, actor)
    if outcome is Reason.FAILED and failure is not None:
        pause_if_alike(txn, study, lease=lease, failure=failure)

    if study.max_concurrent is not None:
        studies.leave(txn, study_id=study.id)
    counters.move(txn, study_id=study.id, key=lease.token, out_of=State.RUNNING, into=ending.state)
    return Ended(ending, unsummed=to_sum_up and analysis is None)


def _asked(txn: Txn, study: Study, held: Held) -> Verdict | None:
    """
    What people ask for when an attempt ends.

    The study's row is locked before its pause is carried out: a resumption either comes first and
    is seen here, or waits, and then finds the trial PAUSED.
    """
    asked = wanted(held.request, held.status)
    if asked is None or asked.by is not DecidedBy.STUDY:
        return asked
    return wanted(held.request, studies.locked_status(txn, study_id=study.id))


def _tell(txn: Txn, lease: Lease, outcome: Reason, failure: Failure | None, actor: str) -> None:
    events.append(
        txn,
        study_id=lease.study_id,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
        kind=outcome.lower(),
        actor=actor,
        data=None if failure is None else _cause(outcome, failure),
    )


def _cause(outcome: Reason, failure: Failure) -> dict[str, str]:
    cause = {"type": failure.type, "message": failure.message}
    return cause | ({"fingerprint": fingerprint(failure)} if outcome is Reason.FAILED else {})
