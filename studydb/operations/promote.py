"""Ask the scheduler for work for a free worker (promote a trial, close a rung), and do it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.custom_scheduler import Question
from studydb.domain.deciding import DecisionFailed, DecisionNeeded, Undecided
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import State, Status
from studydb.domain.records import Claimant, Study
from studydb.domain.scheduling import (
    Close,
    Idle,
    QueueView,
    TrialCanBeClaimed,
    WaitingTrial,
    Work,
)
from studydb.operations.close_rung import close_rung
from studydb.operations.give_up import give_up
from studydb.operations.user_work import (
    ask_user,
    can_ask,
    pause_undecided,
    record_idle,
    recorded_idle,
)
from studydb.store import claims, counters, events, promotions, studies

TRIES = 8
"""
A search for work ends after this many refused choices. The usual reason for a refusal is that
another worker has promoted the trial first.
"""

MOST_CLOSED = 100
"""The most rungs that one search for work closes."""


class Asked(NamedTuple):
    """
    A scheduler's answer about work for a free worker.

    Attributes:
        work: The answer. None if `can_claim` is true, or if a scheduler in the user's code was not
            asked or did not decide. If the answer is None, there may be work.
        has_trials_to_give_up: Whether closed rungs have work for `give_up`: trials to end, or rungs
            to mark as over.
        question: The question to the user's code; None if the code need not or cannot be asked.
            The function `answered` asks the user's code, and leaves this attribute as it is.
        can_claim: Whether the scheduler gave no answer because a trial can be claimed. The worker
            claims this trial first.
    """

    work: Work | None
    has_trials_to_give_up: bool
    question: Question | None = None
    can_claim: bool = False

    @property
    def may_have_work(self) -> bool:
        """Whether a worker may have work other than to make a new trial."""
        return self.has_trials_to_give_up or not isinstance(self.work, Idle)


NOTHING = Asked(Idle.START_NEW, has_trials_to_give_up=False)


class NextStep(StrEnum):
    """What the worker does after `promote`."""

    CLAIM = "claim"
    START_NEW = "start new"
    WAIT = "wait"


def promote(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    again: bool = True,
    fits: Sequence[str] | None = None,
) -> NextStep:
    """
    Ask the scheduler for work until it names a trial or has no more work.

    The named trial becomes PENDING. The scheduler's choice is read without locks. If another worker
    promotes the same trial first, the scheduler is asked again. Nothing is promoted while a trial
    can be claimed, `max_concurrent` trials run, or the study is not RUNNING. If the scheduler
    answers with `Close`, the rung is closed, and the scheduler is asked again. A duplicate request
    has the same token. If the first request has promoted a trial, the duplicate changes nothing.

    Args:
        again: Whether the token may have been sent before; see `claim`.
        fits: The resource classes whose trials the worker can start; None in a study without
            classes. Trials of other classes are not promoted.

    Returns:
        CLAIM if a trial was promoted, by this request or by an earlier send of it, or if a trial
        can be claimed. START_NEW if the scheduler promotes no trials, or wants a new trial now.
        Otherwise WAIT.
    """
    if again and _has_promoted(database, claimant):
        return NextStep.CLAIM
    step = _search(database, study, claimant, fits)
    if step is not NextStep.CLAIM and again and _has_promoted(database, claimant):
        return NextStep.CLAIM  # the first request has promoted a trial meanwhile
    return step


def _search(
    database: Database, study: Study, claimant: Claimant, fits: Sequence[str] | None
) -> NextStep:
    n_refused = n_closed = 0
    while n_refused < TRIES and n_closed < MOST_CLOSED:
        asked = _ask_scheduler(database, study, fits)
        if asked.has_trials_to_give_up:
            give_up(database, study, is_idle=asked.work is Idle.WAIT)
        match asked.work:
            case WaitingTrial() as chosen:
                step = _promote(database, study, chosen, claimant, fits)
                if step is not None:
                    return step
                n_refused += 1
            case Close() as closing:
                is_new = close_rung(database, study, closing)
                n_closed, n_refused = n_closed + is_new, n_refused + (not is_new)
            case Idle() if asked.has_trials_to_give_up and asked.question is not None:
                n_refused += 1  # the rungs have changed, so that `record_idle` needs a new answer
            case Idle() as idle:
                if asked.question is not None:
                    record_idle(database, study, asked.question, idle)
                return NextStep(idle)
            case None:
                return NextStep.CLAIM if asked.can_claim else NextStep.WAIT
    return NextStep.WAIT


def _ask_scheduler(database: Database, study: Study, fits: Sequence[str] | None) -> Asked:
    if not study.scheduler.resumes:
        return NOTHING
    with database.begin(write=False, snapshot=True) as txn:
        asked = ask_scheduler(txn, study, fits=fits)
    try:
        return answered(study, asked)
    except DecisionFailed as error:
        why = f"the scheduler {study.scheduler} has not named work: {error}"
        pause_undecided(database, study, Undecided(why, error.traceback))
        return asked


def answered(study: Study, asked: Asked) -> Asked:
    """
    Complete an answer by asking the user's code, if it must be asked; no transaction may be open.

    Raises:
        DecisionFailed: The code has not decided.
    """
    if asked.question is None:
        return asked
    return asked._replace(work=ask_user(study, asked.question))


def ask_scheduler(txn: Txn, study: Study, *, fits: Sequence[str] | None = None) -> Asked:
    """
    Read the rungs in a snapshot, and ask the scheduler what a free worker does.

    A scheduler in the user's code is not asked while the transaction is open: `answered` asks it
    later. A process that cannot ask the user's code gets the scheduler's last recorded answer, if
    that answer was to the same question.

    A scheduler that reads which trials are underway gives no answer while a trial can be claimed.

    Args:
        fits: The resource classes whose trials the free worker can start; None if every request
            fits.
    """
    if not study.scheduler.resumes:
        return NOTHING
    is_limited = study.limits.end_study
    queues = promotions.Queues(txn, study_id=study.id, is_limited=is_limited, fits=fits)
    try:
        work = study.scheduler.next_work(queues)
    except TrialCanBeClaimed:
        return Asked(None, queues.has_trials_to_give_up, can_claim=True)
    except DecisionNeeded as needed:
        if can_ask(study):
            return Asked(None, queues.has_trials_to_give_up, needed.question)
        return Asked(recorded_idle(txn, study, needed.question), queues.has_trials_to_give_up)
    if isinstance(work, Close) and not _can_close(queues, work):
        work = Idle.WAIT  # the rung cannot be closed; the scheduler would name this work for ever
    return Asked(work, queues.has_trials_to_give_up)


def _can_close(queues: QueueView, closing: Close) -> bool:
    rung = queues.rung(closing.rung)
    return rung.n_entries > 0 and not rung.is_closed


def _promote(
    database: Database,
    study: Study,
    chosen: WaitingTrial,
    claimant: Claimant,
    fits: Sequence[str] | None,
) -> NextStep | None:
    """
    Promote a trial, and return what the worker does next.

    Returns:
        CLAIM if the trial was promoted or another trial can be claimed; WAIT if the study cannot
        run a trial now; None if the caller must ask the scheduler again.
    """
    try:
        with database.begin(durable=False) as txn:  # if a crash undoes this, a worker repeats it
            if promotions.promote(txn, study_id=study.id, chosen=chosen, fits=fits):
                _record(txn, study, chosen, claimant)
                return NextStep.CLAIM
            step = _after_refusal(txn, study, fits)
            txn.abandon()
            return step
    except Duplicate:
        return NextStep.CLAIM


def _after_refusal(txn: Txn, study: Study, fits: Sequence[str] | None) -> NextStep | None:
    if claims.any_runnable(txn, study_id=study.id, fits=fits):
        return NextStep.CLAIM
    budget = studies.budget(txn, study_id=study.id)
    may_promote = budget.status is Status.RUNNING and budget.has_room
    return None if may_promote else NextStep.WAIT


def _record(txn: Txn, study: Study, chosen: WaitingTrial, claimant: Claimant) -> None:
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


def _has_promoted(database: Database, claimant: Claimant) -> bool:
    with database.begin(write=False) as txn:
        return bool(events.data_of(txn, token=claimant.token))
