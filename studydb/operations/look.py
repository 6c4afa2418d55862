"""Look at what a study has to do, without a lock: what idle workers poll."""

from dataclasses import dataclass

from studydb.db import Database
from studydb.domain.life.alike_failures import GUARD
from studydb.domain.life.states import Status
from studydb.domain.records import Counts, Study
from studydb.store import counters, leases, studies


@dataclass(frozen=True, slots=True)
class Outlook:
    """
    What a study has to do.

    Attributes:
        status: FINISHED when the budget is spent and nothing is PENDING or RUNNING.
        runnable: Whether a trial waits to be claimed.
        open: Whether the budget and the searcher allow new trials.
        has_room: Whether `max_concurrent` lets one more run.
        pause_reason: Why the study has paused itself; None if it has not.
        num_trials: The budget; None for endless.
    """

    status: Status
    counts: Counts
    runnable: bool
    open: bool
    has_room: bool
    pause_reason: str | None = None
    num_trials: int | None = None

    @property
    def inviting(self) -> bool:
        """Whether a claim or ask may succeed now."""
        return self.status is Status.RUNNING and self.has_room and (self.runnable or self.open)

    @property
    def is_barren(self) -> bool:
        """Whether an own loop has nothing to wait for, whatever others still run."""
        if self.status is Status.PAUSED:
            return False
        stopped = self.status is Status.STOPPED
        return stopped or (not self.open and self.counts.pending == 0)

    @property
    def over(self) -> bool:
        """Whether a worker that does not wait may go: all is done, or the study paused itself."""
        stopped = self.status is Status.STOPPED and self.counts.running == 0
        return self.status is Status.FINISHED or stopped or self.pause_reason is not None

    @property
    def has_failed(self) -> bool:
        """Whether it is over without a trial that ended well, because of errors or its guard."""
        if self.pause_reason is not None:
            return True
        return self.over and self.counts.terminated == 0 and self.counts.error > 0


def look(database: Database, study: Study) -> Outlook:
    """Read a study's budget, counts and whether something waits."""
    with database.begin(write=False) as txn:
        row = studies.budget(txn, study_id=study.id)
        counts = counters.read(txn, study_id=study.id)
        runnable = leases.any_runnable(txn, study_id=study.id)
    status = Status(row.status)
    idle = counts.pending == counts.running == 0
    if status is Status.RUNNING and row.spent and idle:
        status = Status.FINISHED
    return Outlook(
        status=status,
        counts=counts,
        runnable=runnable,
        open=row.open,
        has_room=row.has_room,
        pause_reason=row.pause_reason if row.paused_by == GUARD else None,
        num_trials=row.num_trials,
    )
