"""
Custom stop rules: what they read, and what follows from their decisions; failures of schedulers.

The user's code runs outside of any transaction. Its decision comes with the batch, and takes effect
in the transaction that stores the results, if the attempt still holds its trial.
"""

from studydb.db import Database, Txn
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.metrics import Result
from studydb.domain.records import Lease, Study
from studydb.operations.flushing import Flushed
from studydb.operations.guard import pause_after_rule, pause_after_scheduler
from studydb.store import events, results


def live_results(database: Database, *, lease: Lease, before: int, limit: int) -> list[Result]:
    """
    Read the last results of a trial below a step, oldest first, without superseded results.

    Args:
        before: The first step that the attempt reports. When the attempt stores its first results,
            it supersedes the results of earlier attempts from this step on.
    """
    found: list[Result] = []
    with database.begin(write=False) as txn:
        spans = results.spans(
            txn, study_id=lease.study_id, trial_id=lease.trial_id, through=before - 1
        )
        for span in results.last_spans(txn, spans, limit=limit):
            found.extend(map(results.read, results.page(txn, span, limit=limit)))
    return found[-limit:]


def carry_out(txn: Txn, study: Study, flushed: Flushed, *, lease: Lease) -> None:
    """
    Record why the user's code has ended a trial; pause the study if the code did not decide.

    This may lock the study's row.
    """
    if flushed.undecided is not None:
        step, undecided = flushed.undecided
        pause_after_scheduler(txn, study, undecided, lease=lease, step=step)
    if flushed.why is not None:
        data = {"step": flushed.stored[-1].step, "why": flushed.why}
        kind, actor = EventKind.JUDGED, Actor.SCHEDULER
        events.append(txn, study_id=study.id, lease=lease, kind=kind, actor=actor, data=data)
    ruled = flushed.ruled
    if ruled is None:
        return
    last, verdict = flushed.stored[-1].step, flushed.verdict
    is_by_rule = verdict is not None and verdict.by is DecidedBy.RULE
    if is_by_rule and ruled.stops_at == last:
        met = {"step": last, "rule": ruled.rule, "reason": ruled.why}
        kind, actor = EventKind.RULE_MET, Actor.RULE
        events.append(txn, study_id=study.id, lease=lease, kind=kind, actor=actor, data=met)
    if ruled.failure is not None and ruled.failure.step <= last:
        pause_after_rule(txn, study, lease=lease, failure=ruled.failure)
