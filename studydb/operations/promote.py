"""Do what the scheduler wants of a free worker: resume a trial, close a rung, or make a trial."""

from enum import StrEnum
from typing import NamedTuple

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import State
from studydb.domain.records import Claimant, Study
from studydb.domain.scheduling import Close, Idle, WaitingTrial, Work
from studydb.operations.close_rung import close_rung
from studydb.operations.give_up import give_up
from studydb.store import counters, events, promotions

TRIES = 8
"""How often the scheduler is asked at most; another worker can promote its choice first."""


class Asked(NamedTuple):
    """A scheduler's answer, and whether closed rungs are left to be ended; see `give_up`."""

    work: Work
    is_left: bool

    @property
    def is_something(self) -> bool:
        """Whether a worker has something to do before it may make a new trial."""
        return self.is_left or not isinstance(self.work, Idle)


NOTHING = Asked(Idle.START_NEW, is_left=False)


class NextStep(StrEnum):
    """What the worker does after `promote`."""

    CLAIM = "claim"
    START_NEW = "start new"
    WAIT = "wait"


def promote(
    database: Database, study: Study, claimant: Claimant, *, again: bool = True
) -> NextStep:
    """
    Ask the scheduler for work until it names a trial, which becomes PENDING, or has no more work.

    The scheduler's choice is read without locks. If another worker promotes the same trial first,
    the scheduler is asked again. Nothing is promoted while a trial is PENDING or `max_concurrent`
    trials run. A rung that the scheduler closes is closed first. A duplicate request, which has the
    same token, promotes no second trial.

    Args:
        again: Whether the token may have been sent before; see `claim`.

    Returns:
        CLAIM if a trial was promoted, by this request or by an earlier send of it.
    """
    step = NextStep.START_NEW
    for _ in range(TRIES):
        asked = _ask_scheduler(database, study)
        if asked.is_left:
            give_up(database, study)
        match asked.work:
            case WaitingTrial() as chosen:
                try:
                    if _promote(database, study, chosen, claimant):
                        return NextStep.CLAIM
                except Duplicate:
                    return NextStep.CLAIM
            case Close() as closing:
                close_rung(database, study, closing)
            case Idle() as idle:
                step = NextStep(idle)
                break
    return NextStep.CLAIM if again and _was_sent_before(database, claimant) else step


def _ask_scheduler(database: Database, study: Study) -> Asked:
    if not study.scheduler.resumes:
        return NOTHING
    with database.begin(write=False, snapshot=True) as txn:
        return ask_scheduler(txn, study)


def ask_scheduler(txn: Txn, study: Study) -> Asked:
    """Read the rungs in a snapshot, and ask the scheduler what a free worker does."""
    if not study.scheduler.resumes:
        return NOTHING
    queues = promotions.read_queues(txn, study_id=study.id)
    return Asked(study.scheduler.next_work(queues), queues.is_left)


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
