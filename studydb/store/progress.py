"""What a process that polls a study reads: its budget, its counts, and whether a trial waits."""

from dataclasses import dataclass

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import PAUSED_BY_STUDY, study, trial
from studydb.domain.records import Counts
from studydb.store import counters, studies, sweeps
from studydb.store.claims import ANY_RUNNABLE
from studydb.store.studies import Budget

_counts = counters.SUMS.subquery("counts")
_OF_STUDY = trial.c.study_id == sa.bindparam("study")

_paused_with_study = sa.select(trial.c.id).where(_OF_STUDY, PAUSED_BY_STUDY).limit(1)

_PROGRESS = Prepared(
    sa.select(
        *studies.BUDGET,
        *_counts.c,
        ANY_RUNNABLE.scalar_subquery().is_not(None).label("has_runnable"),
        sweeps.HAS_WAITED.label("has_waited"),
        _paused_with_study.scalar_subquery().is_not(None).label("is_resuming"),
    )
    .select_from(study)
    .join(_counts, sa.true())
    .where(studies.THIS)
)


@dataclass(frozen=True, slots=True)
class Progress:
    """
    A study's budget and counts, as one statement sees them.

    Attributes:
        has_runnable: Whether a PENDING trial is not in back-off, whatever the study's status.
        has_waited: Whether a PENDING trial's back-off is over, so that a sweep makes it runnable.
        is_resuming: Whether trials are still PAUSED because the study was paused.
    """

    budget: Budget
    counts: Counts
    has_runnable: bool
    has_waited: bool
    is_resuming: bool


def read(txn: Txn, *, study_id: int) -> Progress:
    """
    Read a study's progress in one statement, so that no trial moves between two reads.

    It reads the rows of the study and its counters by key, and one row at most of each partial
    index of the trials that wait. Idle workers send it about every second.

    Raises:
        UnknownStudy: The study was deleted.
    """
    row = studies.existing(txn.first(_PROGRESS, study=study_id))
    return Progress(
        budget=studies.budget_of(row),
        counts=Counts(*(int(getattr(row, column.key)) for column in _counts.c)),
        has_runnable=bool(row.has_runnable),
        has_waited=bool(row.has_waited),
        is_resuming=bool(row.is_resuming),
    )
