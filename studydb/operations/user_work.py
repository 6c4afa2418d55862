"""Ask a custom scheduler for work; record that it has none, or pause the study if it fails."""

import hashlib
import json

from studydb.db import Database, Txn
from studydb.domain.custom_scheduler import Question, WorkView
from studydb.domain.deciding import NotAsked, Undecided
from studydb.domain.errors import UnknownStudy
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.records import Study
from studydb.domain.scheduling import Idle, Work
from studydb.operations.guard import pause_after_scheduler
from studydb.operations.record_event import raising_if_deleted
from studydb.schedulers import UserScheduler
from studydb.store import events
from studydb.store.studies import DELETED


def can_ask(study: Study) -> bool:
    """Whether this process can ask the study's custom scheduler."""
    return isinstance(study.scheduler, UserScheduler) and study.scheduler.ask is not None


def ask_user(study: Study, question: Question) -> Work | None:
    """
    Ask the user's code for work, while no transaction is open.

    Returns:
        None if this process is stopping.

    Raises:
        DecisionFailed: The code has not decided.
    """
    scheduler = study.scheduler
    assert isinstance(scheduler, UserScheduler)
    assert scheduler.ask is not None
    try:
        return scheduler.ask(question)  # type: ignore[return-value]  # the question is `NEXT_WORK`
    except NotAsked:
        return None


def pause_undecided(database: Database, study: Study, undecided: Undecided) -> None:
    """Pause a RUNNING study because its scheduler failed to decide; trials that run go on."""
    with database.begin() as txn:
        pause_after_scheduler(txn, study, undecided)


def record_idle(database: Database, study: Study, question: Question, answer: Idle) -> None:
    """
    Record that the scheduler has no work left, if no trial is underway and none will be made.

    `status` and `study.wait`, which do not run the user's code, then know that the study is
    FINISHED. The record is valid while the scheduler would be asked the same question.

    Raises:
        UnknownStudy: The study was deleted.
    """
    view = WorkView(json.loads(question.text))
    if not view.is_idle or (answer is Idle.START_NEW and view.may_start):
        return
    with raising_if_deleted(UnknownStudy(DELETED)), database.begin() as txn:
        if recorded_idle(txn, study, question) is answer:
            txn.abandon()
            return
        events.append(
            txn,
            study_id=study.id,
            kind=EventKind.SCHEDULER_IDLE,
            actor=Actor.SCHEDULER,
            data={"answer": answer, "rungs": _digest(question)},
        )


def recorded_idle(txn: Txn, study: Study, question: Question) -> Idle | None:
    """Read the scheduler's last recorded answer; None if that answer was to another question."""
    found = events.scheduler_idle(txn, study_id=study.id)
    if found.get("rungs") != _digest(question):
        return None
    return Idle(found["answer"])


def _digest(question: Question) -> str:
    return hashlib.sha256(question.text.encode()).hexdigest()
