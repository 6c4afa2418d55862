"""Let a free worker resume the trial that the scheduler chooses."""

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import State
from studydb.domain.records import Claimant, Study
from studydb.domain.scheduling import WaitingTrial
from studydb.store import counters, events, promotions

TRIES = 3
"""How often the scheduler is asked at most; another worker can promote its choice first."""


def promote(database: Database, study: Study, claimant: Claimant, *, again: bool = True) -> bool:
    """
    Move the trial that the scheduler promotes next to PENDING, where any worker may claim it.

    The choice is read without locks. If another worker promotes the same trial first, the scheduler
    is asked again. Nothing is promoted while a trial is PENDING or `max_concurrent` trials run. A
    duplicate request, which has the same token, promotes no second trial.

    Args:
        again: Whether the token may have been sent before; see `claim`.

    Returns:
        Whether a trial was promoted, by this request or by an earlier send of it.
    """
    for _ in range(TRIES):
        with database.begin(write=False) as txn:
            chosen = next_promotion(txn, study)
        if chosen is None:
            break
        try:
            if _promote(database, study, chosen, claimant):
                return True
        except Duplicate:
            return True
    return again and _was_sent_before(database, claimant)


def next_promotion(txn: Txn, study: Study) -> WaitingTrial | None:
    """Read the trial that the scheduler promotes next; None if there is none."""
    if not study.scheduler.promotes_from():
        return None
    return study.scheduler.next_work(promotions.read_queues(txn, study_id=study.id))


def _promote(database: Database, study: Study, chosen: WaitingTrial, claimant: Claimant) -> bool:
    with database.begin(durable=False) as txn:  # a promotion that is lost is made again
        if not promotions.promote(txn, study_id=study.id, chosen=chosen):
            txn.abandon()
            return False
        events.append(
            txn,
            study_id=study.id,
            trial_id=chosen.trial_id,
            worker_id=claimant.worker_id,
            kind=EventKind.PROMOTED,
            actor=Actor.SCHEDULER,
            data=chosen.rung._asdict() | {"score": chosen.score},
            token=claimant.token,
        )
        counters.move(
            txn, study_id=study.id, key=claimant.token, out_of=State.PAUSED, into=State.PENDING
        )
    return True


def _was_sent_before(database: Database, claimant: Claimant) -> bool:
    with database.begin(write=False) as txn:
        return bool(events.data_of(txn, token=claimant.token))
