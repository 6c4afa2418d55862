"""
Read what custom stop rules judge, and carry out what the user's code has decided.

The user's code runs outside of any transaction. Its decision comes with the batch, and takes effect
in the transaction that stores the results, if the attempt still holds its trial.
"""

from studydb.db import Database, Txn
from studydb.domain.deciding import Undecided
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.metrics import Result
from studydb.domain.records import Lease, Study
from studydb.domain.resources import read_resources
from studydb.operations.flushing import Flushed
from studydb.operations.guard import pause_after_rule, pause_after_scheduler
from studydb.store import events, resource_classes, results, studies


def live_results(database: Database, *, lease: Lease, before: int, limit: int) -> list[Result]:
    """
    Read a trial's last live results at steps below `before`, oldest first.

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
    Carry out what the user's code has decided besides the verdict.

    Record why the code stops or pauses the trial. Store which resources the trial's next attempts
    need. Pause the study if the code did not decide. The study's row is locked if the study is
    paused or the trial's resources change.
    """
    if flushed.undecided is not None:
        step, undecided = flushed.undecided
        pause_after_scheduler(txn, study, undecided, lease=lease, step=step)
    if flushed.why is not None:
        data = {"step": flushed.stored[-1].step, "why": flushed.why}
        kind, actor = EventKind.JUDGED, Actor.SCHEDULER
        events.append(txn, study_id=study.id, lease=lease, kind=kind, actor=actor, data=data)
    if flushed.resources is not None:
        _change_resources(txn, study, flushed, lease=lease)
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


def _change_resources(txn: Txn, study: Study, flushed: Flushed, *, lease: Lease) -> None:
    """
    Store which resources the next attempts of a pausing trial need.

    If the study has 64 different requests already, and the new request would be one more, the trial
    keeps its former request, and the study pauses itself.
    """
    step, asked = flushed.stored[-1].step, read_resources("resources", flushed.resources)
    studies.locked_settings(txn, study_id=study.id)
    try:
        name = resource_classes.add(txn, study_id=study.id, asked=asked)
    except InvalidSpec as error:
        why = f"{study.scheduler} wanted to change the resources of the trial. {error}"
        pause_after_scheduler(txn, study, Undecided(why), lease=lease, step=step)
        return
    resource_classes.move_of_attempt(txn, lease=lease, name=name)
    data = {"numbers": [lease.number], "resources": asked.to_json()}
    kind, actor = EventKind.RESOURCES_SET, Actor.SCHEDULER
    events.append(txn, study_id=study.id, lease=lease, kind=kind, actor=actor, data=data)
