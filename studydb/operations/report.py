"""Store a batch of results, decide on it, and store the decision."""

from studydb.db import Database
from studydb.domain.life.decisions import Answer
from studydb.domain.life.ending import requested_verdict
from studydb.domain.records import Batch, Lease, Study
from studydb.operations.flushing import flush, next_step, refused, summary_if_undecided
from studydb.operations.ruling import carry_out
from studydb.operations.spending import charge
from studydb.store import leases, single_statement


def report(database: Database, study: Study, *, lease: Lease, batch: Batch) -> Answer:
    """
    Store a batch and the decision on it in one transaction, and renew the lease.

    If no decision or request is pending, a single statement does the work; for the other conditions
    see `summary_if_undecided` and `single_statement.report`. A duplicate batch changes nothing and
    gets the stored verdict. If a stored verdict refuses results, the batch is dropped.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
        DecisionNeeded: The study's custom scheduler must be asked first; nothing was stored.
    """
    summary = summary_if_undecided(study, lease, batch)
    if summary is not None and batch.results:
        with database.begin(single=True) as txn:
            stored = single_statement.report(txn, lease=lease, batch=batch, summary=summary)
        if stored:
            return Answer(None, next_step(study, lease, batch), summary)

    with database.begin() as txn:
        flushed = flush(txn, study, lease=lease, batch=batch)
        if flushed is None:
            verdict = refused(txn, lease=lease, flush_no=batch.flush_no)
            return Answer(verdict, next_step(study, lease, batch))
        held = flushed.held
        if not flushed.is_new:
            return Answer(held.verdict, next_step(study, lease, batch), flushed.summary)

        charged = charge(
            txn,
            study,
            trial_ids=[lease.trial_id],
            lease=lease,
            results=flushed.stored,
            are_valid=not held.is_invalidated,
        )
        decided = charged.verdict(lease.trial_id, flushed.verdict)
        verdict = decided or requested_verdict(held.request, held.status)
        # An empty batch leaves the stored flush number, which is 0 until results are stored.
        flush_no = batch.flush_no if batch.results else held.flush_no
        leases.record(
            txn,
            lease=lease,
            stored=flushed.stored,
            flush_no=flush_no,
            summary=flushed.summary,
            time_total_s=flushed.time_total_s,
            verdict=verdict,
        )
        carry_out(txn, study, flushed, lease=lease)
        charged.store(txn, study, key=lease.token)
    return Answer(verdict, next_step(study, lease, batch), flushed.summary)
