"""Pause a study whose trials all fail alike."""

from studydb.db import Txn
from studydb.domain.life.alike_failures import MAX_ALIKE, fingerprint, pause_reason
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import Status
from studydb.domain.records import Failure, Lease, Study
from studydb.store import events, results, studies


def pause_if_alike(txn: Txn, study: Study, *, lease: Lease, failure: Failure) -> None:
    """
    Pause the study if `MAX_ALIKE` trials have failed alike and no trial has ever reported.

    Failures from before the study was last resumed do not count. The study's row is locked first,
    so that concurrent failures are counted in turn. The cost does not grow with the study.
    """
    if not study.guard or results.any_of_study(txn, study_id=study.id):
        return
    if studies.locked_status(txn, study_id=study.id) is not Status.RUNNING:
        return

    known = fingerprint(failure)
    failed = events.failures_since_resumption(txn, study_id=study.id)
    alike = {lease.trial_id, *(one.trial_id for one in failed if one.fingerprint == known)}
    if len(alike) < MAX_ALIKE:
        return

    why = pause_reason(failure, len(alike))
    studies.pause_itself(txn, study_id=study.id, by=DecidedBy.GUARD, why=why)
    events.append(
        txn, study_id=study.id, kind=EventKind.STUDY_PAUSED, actor=Actor.GUARD, data={"reason": why}
    )
