"""Read a study's progress and whether a claim may succeed, without locks, for polling."""

from dataclasses import dataclass

from studydb.db import Database, Txn
from studydb.domain.life.states import Status
from studydb.domain.records import Counts, Study
from studydb.store import claims, counters, studies


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """
    A study's status, its counts, and whether it has more work.

    Attributes:
        status: FINISHED when the budget is spent and no trial is PENDING or RUNNING.
        has_runnable: Whether a PENDING trial is not in back-off, whatever the study's status.
        has_budget: Whether the budget and the searcher allow new trials.
        has_room: Whether `max_concurrent` lets one more trial run.
        pause_reason: Why the study's guard paused the study; None if the guard did not.
        num_trials: The most trials of the study; None for no limit.
    """

    status: Status
    counts: Counts
    has_runnable: bool
    has_budget: bool
    has_room: bool
    pause_reason: str | None = None
    num_trials: int | None = None

    @property
    def can_claim(self) -> bool:
        """Whether a claim or ask may succeed now."""
        has_work = self.has_runnable or self.has_budget
        return self.status is Status.RUNNING and self.has_room and has_work

    @property
    def is_exhausted(self) -> bool:
        """Whether an own loop gets no more trials; other processes may still run trials."""
        if self.status is Status.PAUSED:
            return False
        return self.status is Status.STOPPED or not (self.has_budget or self.counts.pending)

    @property
    def is_done(self) -> bool:
        """Whether a worker without `--wait` exits: nothing is left, or the study paused itself."""
        stopped = self.status is Status.STOPPED and self.counts.running == 0
        return self.status is Status.FINISHED or stopped or self.pause_reason is not None

    @property
    def has_failed(self) -> bool:
        """Whether the study paused itself, or ended with errors and without a completed trial."""
        if self.pause_reason is not None:
            return True
        return self.is_done and self.counts.terminated == 0 and self.counts.error > 0


def read_progress(database: Database, study: Study) -> StudyProgress:
    """Read a study's budget and counts, and whether a trial can be claimed."""
    with database.begin(write=False) as txn:
        return progress_in(txn, study)


def progress_in(txn: Txn, study: Study) -> StudyProgress:
    """Do the work of `read_progress` within a transaction."""
    budget = studies.budget(txn, study_id=study.id)
    counts = counters.read(txn, study_id=study.id)
    has_runnable = claims.any_runnable(txn, study_id=study.id)
    idle = counts.pending == counts.running == 0
    is_finished = budget.status is Status.RUNNING and budget.is_spent and idle
    return StudyProgress(
        status=Status.FINISHED if is_finished else budget.status,
        counts=counts,
        has_runnable=has_runnable,
        has_budget=budget.allows_new,
        has_room=budget.has_room,
        pause_reason=budget.guard_reason,
        num_trials=budget.num_trials,
    )
