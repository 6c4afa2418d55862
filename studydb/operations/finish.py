"""End an attempt, with its last flush: completed, failed, released, lost, or as a verdict wants."""

from collections.abc import Sequence

from studydb.db import Database, Txn
from studydb.domain.decisions import Verdict
from studydb.domain.ending import (
    Ending,
    Limits,
    Standing,
    conclude,
    settle,
    settle_completed,
    wanted,
)
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch, Failure, Lease, Log, Study
from studydb.domain.states import Reason, State
from studydb.operations.flushing import Flushed, foresee, lock_rungs, refused, store_batch
from studydb.store import at_once, attempts, counters, events, leases, results, studies
from studydb.store.leases import Held


def finish(
    database: Database,
    study: Study,
    *,
    lease: Lease,
    outcome: Reason,
    batch: Batch,
    flushed: Sequence[Result] | None = (),
    failure: Failure | None = None,
    log: Log | None = None,
) -> Ending | None:
    """
    End an attempt and move its trial where the attempt's end leaves it.

    Results that came after a verdict are dropped; those before it are flushed here.

    Args:
        outcome: COMPLETED; FAILED (the user's code raised); LOST (it died); PREEMPTED (released,
            which spends nothing); TIMED_OUT.
        flushed: The trial's results before this batch, as far as they are known here.

    Returns:
        Where the trial went; None when an earlier send of this finish has committed.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    if outcome is Reason.COMPLETED and study.max_concurrent is None:
        ending = _complete(database, study, lease, batch, flushed=flushed or (), log=log)
        if ending is not None:
            return ending

    with database.begin() as txn:
        locked = lock_rungs(txn, study, lease=lease, batch=batch)
        held = leases.hold(txn, lease=lease)
        if held is None:
            refused(txn, lease=lease, flush_no=batch.flush_no)
            return None

        if held.refuses_results or held.flush_no >= batch.flush_no:
            stored = Flushed((), held.summary, held.time_total_s, None)
        else:
            stored = store_batch(txn, study, held, lease=lease, batch=batch, locked=locked)

        return end_attempt(
            txn,
            study,
            held,
            lease=lease,
            outcome=outcome,
            flushed=stored,
            flush_no=batch.flush_no,
            failure=failure,
            log=log,
        )


def _complete(
    database: Database,
    study: Study,
    lease: Lease,
    batch: Batch,
    *,
    flushed: Sequence[Result],
    log: Log | None,
) -> Ending | None:
    """Complete a trial whose results are all known here, in one statement, if that is all."""
    summary, known = foresee(study, batch), [*flushed, *batch.results]
    if summary is None or summary.n_results != len(known):
        return None
    with database.begin(single=True) as txn:
        row = at_once.finish(
            txn,
            lease=lease,
            batch=batch,
            summary=summary,
            metric_summary=Summary.of_metrics(known, study.metric) or None,
            log=log,
        )
    if row is None:
        return None
    standing = Standing(row.failures, row.losses, verdict=None)
    return conclude(Reason.COMPLETED, standing, Limits(study.max_failures, study.max_losses))


def end_attempt(
    txn: Txn,
    study: Study,
    held: Held,
    *,
    lease: Lease,
    outcome: Reason,
    flushed: Flushed,
    flush_no: int,
    failure: Failure | None = None,
    log: Log | None = None,
    actor: str = "worker",
) -> Ending:
    """Move a held trial out of RUNNING and close its attempt; the counts follow."""
    settled = settle_completed if outcome is Reason.COMPLETED else settle
    verdict = settled(flushed.verdict or held.verdict, _asked(txn, study, held))
    ending = conclude(
        outcome,
        Standing(held.failures, held.losses, verdict),
        Limits(study.max_failures, study.max_losses),
    )

    leases.end(
        txn,
        trial_id=lease.trial_id,
        ending=ending,
        summary=flushed.summary,
        time_total_s=flushed.time_total_s,
        metric_summary=_metric_summary(txn, study, lease, ending, flushed),
    )
    attempts.end(
        txn,
        lease=lease,
        flush_no=flush_no,
        reason=ending.attempt_reason,
        verdict=verdict,
        failure=failure,
        log=log,
    )
    if outcome in (Reason.FAILED, Reason.LOST, Reason.TIMED_OUT):
        _tell(txn, lease, outcome, failure, actor)

    if study.max_concurrent is not None:
        studies.leave(txn, study_id=study.id)
    counters.move(txn, study_id=study.id, key=lease.token, out_of=State.RUNNING, into=ending.state)
    return ending


def _asked(txn: Txn, study: Study, held: Held) -> Verdict | None:
    """
    What people ask for when an attempt ends.

    The study's row is locked before its pause is carried out: a resumption either comes first and
    is seen here, or waits, and then finds the trial PAUSED.
    """
    asked = wanted(held.request, held.status)
    if asked is None or asked.by != "study":
        return asked
    return wanted(held.request, studies.locked_status(txn, study_id=study.id))


def _metric_summary(
    txn: Txn, study: Study, lease: Lease, ending: Ending, flushed: Flushed
) -> dict[str, dict[str, float]] | None:
    if ending.reason is None or flushed.summary.n_results == 0:
        return None
    live = list(flushed.stored)
    if len(live) != flushed.summary.n_results:
        live = results.live(txn, study_id=study.id, trial_id=lease.trial_id)
    return Summary.of_metrics(live, study.metric)


def _tell(txn: Txn, lease: Lease, outcome: Reason, failure: Failure | None, actor: str) -> None:
    events.append(
        txn,
        study_id=lease.study_id,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
        kind=outcome.lower(),
        actor=actor,
        data={"type": failure.type, "message": failure.message} if failure else None,
    )
