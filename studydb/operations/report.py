"""Store a batch of results, decide on it, and store the decision."""

from studydb.db import Database
from studydb.domain.life.decisions import Answer
from studydb.domain.life.ending import wanted
from studydb.domain.records import Batch, Lease, Study
from studydb.operations.flushing import foresee, lock_rungs, next_step, refused, store_batch
from studydb.store import at_once, leases


def report(database: Database, study: Study, *, lease: Lease, batch: Batch) -> Answer:
    """
    Store a batch and the decision on it in one transaction.

    One statement where nothing is to be judged and nobody asks for anything. Sent again, it gives
    the stored answer and changes nothing. Once a scheduler or rule has judged the trial away,
    nothing more is stored.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
    """
    summary = foresee(study, batch)
    if summary is not None and batch.results:
        with database.begin(single=True) as txn:
            stored = at_once.report(txn, lease=lease, batch=batch, summary=summary)
        if stored:
            return Answer(None, next_step(study, batch), summary)

    with database.begin() as txn:
        locked = lock_rungs(txn, study, lease=lease, batch=batch)  # rungs before trials
        held = leases.hold(txn, lease=lease)
        if held is None:
            verdict = refused(txn, lease=lease, flush_no=batch.flush_no)
            return Answer(verdict, next_step(study, batch))
        if held.refuses_results or held.flush_no >= batch.flush_no:
            return Answer(held.verdict, next_step(study, batch), held.summary)

        flushed = store_batch(txn, study, held, lease=lease, batch=batch, locked=locked)
        verdict = flushed.verdict or wanted(held.request, held.status)

        leases.record(
            txn,
            trial_id=lease.trial_id,
            flush_no=batch.flush_no if batch.results else held.flush_no,  # 0: none stored yet
            summary=flushed.summary,
            time_total_s=flushed.time_total_s,
            verdict=verdict,
        )
    return Answer(verdict, next_step(study, batch), flushed.summary)
