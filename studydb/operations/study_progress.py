"""Read a study's progress and whether a claim may succeed, without locks, for polling."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, structs

from studydb.db import Database, Txn
from studydb.domain.deciding import DecisionFailed
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.states import Status
from studydb.domain.records import Counts, Study
from studydb.domain.resources import OF_STUDY
from studydb.domain.scheduling import Idle
from studydb.operations.leave_draw import may_set_aside, most_waiting
from studydb.operations.promote import NOTHING, Asked, answered, ask_scheduler
from studydb.store import progress
from studydb.store.progress import Signs


class StudyProgress(Struct, frozen=True):
    """
    A study's status, its counts, and whether it has more work.

    Attributes:
        status: The stored status; FINISHED instead of RUNNING if `is_over` is True.
        is_over: Whether the budget is spent and nothing is left to do: no trial is PENDING or
            RUNNING, `has_promotable` and `is_resuming` are False, and the scheduler has no work for
            workers with other resources, either. If the scheduler starts no more trials, the budget
            counts as spent.
        has_runnable: Whether there is a PENDING trial that the reader has the resources for and
            that is not in back-off, whatever the study's status.
        has_budget: Whether the study is RUNNING, and its budget, searcher and scheduler allow new
            trials.
        has_room: Whether `max_concurrent` lets one more trial run.
        promotes: Whether the scheduler promotes PAUSED trials at all.
        asked: What the scheduler has answered, if it promotes trials.
        pause_reason: Why the study has paused itself; None if it has not.
        paused_by: What has paused the study, if it has paused itself: its guard, `fail_fast`, or
            the user's code that did not decide.
        keeps_workers: Whether the study has paused itself because the user's code did not decide,
            and work is left. Workers wait for such a study; they end if the study has paused itself
            for another reason, or if no work is left.
        limit_reached: Which limit or stop rule has stopped the study; None if none has.
        num_trials: The most trials of the study, not counting clones; None for no limit.
        n_clones: How many of the trials are clones.
        n_to_make: How many more new trials the budget allows; None without a budget.
        is_resuming: Whether trials are still PAUSED because the study was paused.
        has_waited: Whether a PENDING trial's back-off is over, so that a sweep makes it runnable.
        may_ask: Whether an ask makes sense for the reader's resources. An ask makes sense if the
            next new trial fits the reader, if this trial's request is not known yet, or if the
            reader may leave this trial to other workers.
    """

    status: Status
    counts: Counts
    has_runnable: bool
    has_budget: bool
    has_room: bool
    promotes: bool = False
    asked: Asked = NOTHING
    pause_reason: str | None = None
    paused_by: DecidedBy | None = None
    keeps_workers: bool = False
    limit_reached: str | None = None
    num_trials: int | None = None
    n_clones: int = 0
    n_to_make: int | None = None
    is_resuming: bool = False
    has_waited: bool = False
    may_ask: bool = True
    is_over: bool = False

    @property
    def has_promotable(self) -> bool:
        """
        Whether the scheduler has work for a free worker, or has given no answer.

        Work is to promote a trial, to close a rung, or to end trials that wait at a closed rung.
        """
        return self.asked.may_have_work

    @property
    def needs_sweep(self) -> bool:
        """Whether a sweep makes a trial PENDING, or makes a PENDING trial runnable."""
        return self.has_waited or (self.is_resuming and self.status is Status.RUNNING)

    @property
    def can_claim(self) -> bool:
        """Whether a claim, a promotion or an ask may succeed now."""
        may_ask = self.has_budget and self.may_ask
        has_work = self.has_runnable or may_ask or self.has_promotable
        return self.status is Status.RUNNING and self.has_room and has_work

    def is_exhausted(self, n_held: int) -> bool:
        """
        Tell whether an own loop (`study.ask`) gets no more trials.

        Other processes may still run trials.

        Args:
            n_held: The number of trials that the loop runs itself. If the scheduler promotes
                trials and other processes run trials, the loop is not exhausted, because the
                reports of those trials can cause a promotion.
        """
        if self.status is Status.PAUSED:
            return self.is_over
        is_pending = self.counts.pending > 0 or self.is_resuming
        has_work = self.has_budget or self.has_promotable or is_pending
        may_follow = self.promotes and self.counts.running > n_held
        return self.status is Status.STOPPED or not (has_work or may_follow)

    @property
    def is_done(self) -> bool:
        """
        Whether a worker without `--wait` exits: no work is left, or `has_given_up` is True.

        A study that a person paused after its last trial had ended is done, too.
        """
        if self.status is Status.STOPPED:
            return self.counts.running == 0
        return self.is_over or self.has_given_up

    @property
    def has_given_up(self) -> bool:
        """Whether the study has paused itself for a reason for which its workers end."""
        return self.pause_reason is not None and not self.keeps_workers

    @property
    def has_failed(self) -> bool:
        """Whether `has_given_up` is True, or the study ended with errors and `n_successes` is 0."""
        if self.has_given_up:
            return True
        return self.is_done and self.n_successes == 0 and self.counts.error > 0

    @property
    def n_successes(self) -> int:
        """How many trials ended without an error; with promotions, PAUSED trials count, too."""
        return self.counts.terminated + (self.counts.paused if self.promotes else 0)


def read_progress(
    database: Database, study: Study, *, fits: Sequence[str] | None = None
) -> StudyProgress:
    """
    Read a study's budget and counts, and whether a trial can be claimed.

    The read is a single statement, unless the scheduler promotes trials. A custom scheduler is
    asked for work after the read, if this process can ask it.

    Args:
        fits: The resource classes whose trials the reader can start now; None if every request
            fits.
    """
    promotes = study.scheduler.resumes
    # Without a snapshot, two statements could miss a trial that is promoted between them.
    with database.begin(write=False, single=not promotes, snapshot=promotes) as txn:
        count_to = most_waiting(study) if _reads_next(study, fits) else None
        seen = progress.read(txn, study_id=study.id, fits=fits, count_to=count_to)
        asked = ask_scheduler(txn, study, fits=fits)
        is_left_to_others = promotes and _is_left_to_others(txn, study, asked, fits)
    if asked.question is not None:
        with suppress(DecisionFailed):  # `promote` asks again, and pauses the study if that fails
            asked = answered(study, asked)
    found = _progress(study, seen, asked, is_left_to_others=is_left_to_others)
    return found if fits is None else structs.replace(found, may_ask=_may_ask(study, seen, fits))


def _reads_next(study: Study, fits: Sequence[str] | None) -> bool:
    return fits is not None and study.asks_by_config


def _may_ask(study: Study, seen: progress.Progress, fits: Sequence[str]) -> bool:
    if not study.asks_by_config:
        return OF_STUDY in fits
    if seen.next_class is None or seen.next_class in fits:
        return True
    return seen.n_waiting < most_waiting(study) and may_set_aside(fits)


def _is_left_to_others(txn: Txn, study: Study, asked: Asked, fits: Sequence[str] | None) -> bool:
    """Tell whether the scheduler has work, but only for workers with other resources."""
    if fits is None or asked.may_have_work or asked.question is not None:
        return False
    return ask_scheduler(txn, study).may_have_work


def read_signs(
    database: Database,
    study: Study,
    *,
    worker_id: int | None = None,
    fits: Sequence[str] | None = None,
) -> Signs:
    """
    Read, in a single statement, the signs that show whether a study's progress may have changed.

    Args:
        worker_id: The worker whose `request` is read; None if the reader is no worker.
        fits: See `read_progress`.
    """
    with database.begin(write=False, single=True) as txn:
        return progress.signs(
            txn,
            study_id=study.id,
            worker_id=worker_id,
            fits=fits,
            with_next=_reads_next(study, fits),
        )


def progress_in(txn: Txn, study: Study) -> StudyProgress:
    """Do the work of `read_progress` within a transaction, without asking the user's code."""
    return _progress(study, progress.read(txn, study_id=study.id), ask_scheduler(txn, study))


def _progress(
    study: Study, seen: progress.Progress, asked: Asked, *, is_left_to_others: bool = False
) -> StudyProgress:
    budget, counts = seen.budget, seen.counts
    is_idle = counts.pending == counts.running == 0 and not (
        seen.is_resuming or asked.may_have_work
    )
    starts_new = asked.work is not Idle.WAIT
    is_spent = budget.is_spent or not starts_new
    is_over = is_spent and is_idle and not is_left_to_others
    is_finished = budget.status is Status.RUNNING and is_over
    return StudyProgress(
        status=Status.FINISHED if is_finished else budget.status,
        counts=counts,
        has_runnable=seen.has_runnable,
        has_budget=budget.allows_new and starts_new,
        has_room=budget.has_room,
        promotes=study.scheduler.resumes,
        asked=asked,
        pause_reason=budget.pause_reason,
        paused_by=budget.paused_by,
        keeps_workers=budget.keeps_workers and not is_over,
        limit_reached=budget.limit_reached,
        num_trials=budget.num_trials,
        n_clones=counts.total - budget.n_counted,
        n_to_make=budget.n_to_make,
        is_resuming=seen.is_resuming,
        has_waited=seen.has_waited,
        is_over=is_over,
    )
