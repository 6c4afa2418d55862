"""Read unfinished trials and newest ends, at a cost that does not grow with the study."""

from collections.abc import Sequence

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import attempt, in_state, trial
from studydb.domain.life.states import Reason, State
from studydb.domain.listed_rows import RecentEnds
from studydb.domain.records import LastError

MOST_READ = 1_000
LEAST_READ = 100
LEAST_ENDED = 90
"""
How many trials `recent_ends` reads, from the highest number down.

In a study of up to 1,000 trials it reads all trials. In a larger study it reads 100, because the
newest trials lie on many pages of the table: to read 1,000 took 1.5 ms longer in a study of a
million trials than in one of 10,000. If fewer than 90 of the 100 have ended, it reads 1,000,
because a pace (trials per minute) computed from few ended and many RUNNING trials is too low.
"""

_NUMBERS = sa.select(trial.c.number).where(trial.c.study_id == sa.bindparam("study"))
_LIMIT: sa.BindParameter[int] = sa.bindparam("limit")

# `number + 0` keeps the planner from using the index of all numbers, which also holds the ended
# trials. The planner then finds the few RUNNING trials by the partial index, and sorts them.
_UNFINISHED = {
    State.RUNNING: (
        Prepared(
            _NUMBERS.where(in_state(State.RUNNING)).order_by(trial.c.number + 0).limit(_LIMIT)
        ),
    ),
    State.PENDING: (
        Prepared(
            _NUMBERS.where(in_state(State.PENDING), trial.c.ready)
            .order_by(trial.c.resource_class, trial.c.priority, trial.c.number)
            .limit(_LIMIT)
        ),
        Prepared(
            _NUMBERS.where(in_state(State.PENDING), sa.not_(trial.c.ready))
            .order_by(trial.c.ready_at)
            .limit(_LIMIT)
        ),
    ),
    State.PAUSED: (Prepared(_NUMBERS.where(in_state(State.PAUSED)).limit(_LIMIT)),),
}

_GIVEN_BACK = Prepared(
    sa.select(
        trial.c.number,
        attempt.c.attempt,
        attempt.c.error_type.label("type"),
        attempt.c.error_message,
    )
    .join(attempt, sa.and_(attempt.c.trial_id == trial.c.id, attempt.c.attempt == trial.c.attempt))
    .where(
        trial.c.study_id == sa.bindparam("study"),
        is_listed(trial.c.number, "numbers"),
        in_state(State.PENDING),
        attempt.c.reason == Reason.PREEMPTED,
        attempt.c.error_type.is_not(None),
    )
    .order_by(attempt.c.ended_at.desc())
    .limit(1)
)

_NEWEST = (
    sa.select(trial.c.reason, trial.c.started_at, trial.c.ended_at)
    .where(trial.c.study_id == sa.bindparam("study"))
    .order_by(trial.c.number.desc())
    .limit(_LIMIT)
    .subquery()
)


def _count_of(*reasons: Reason) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((sa.or_(*(_NEWEST.c.reason == each for each in reasons)), 1)))


_RECENT_ENDS = Prepared(
    sa.select(
        sa.func.count(),
        sa.func.count(_NEWEST.c.ended_at),
        _count_of(Reason.COMPLETED),
        _count_of(Reason.EARLY_STOPPED, Reason.RULE_STOPPED),
        _count_of(Reason.GIVEN_UP),
        _count_of(Reason.CANCELLED),
        _count_of(Reason.BUDGET_SPENT, Reason.TIMED_OUT),
        _count_of(Reason.INVALIDATED),
        sa.func.min(_NEWEST.c.started_at),
        sa.func.max(_NEWEST.c.ended_at),
    ).select_from(_NEWEST)
)


def unfinished(txn: Txn, *, study_id: int, limit: int) -> dict[State, list[int]]:
    """
    Read the numbers of some unfinished trials, by state.

    RUNNING trials are ordered by number; PAUSED trials have no order. PENDING trials that are ready
    come first, ordered by resource class, then by queue position. PENDING trials in back-off
    follow, ordered by the end of the back-off.

    Args:
        limit: The most numbers per state.
    """
    found: dict[State, list[int]] = {}
    for state, queries in _UNFINISHED.items():
        rows = [row for query in queries for row in txn.all(query, study=study_id, limit=limit)]
        found[state] = [row.number for row in rows[:limit]]
    return found


def given_back(txn: Txn, *, study_id: int, numbers: Sequence[int]) -> LastError | None:
    """
    Find why a worker last gave back one of these trials, if the trial still waits.

    Workers store an error if their host cannot run the trial, or if a command asks to run later.
    They store none if they end or are drained.
    """
    row = txn.first(_GIVEN_BACK, study=study_id, numbers=list(numbers))
    if row is None:
        return None
    return LastError(row.number, row.attempt, row.type, row.error_message or "")


def recent_ends(txn: Txn, *, study_id: int, n_trials: int) -> RecentEnds:
    """
    Count how the newest trials ended, and find their earliest start and their latest end.

    Args:
        n_trials: The number of the study's trials.
    """
    if n_trials > MOST_READ:
        ends = _read_ends(txn, study_id, LEAST_READ)
        if ends.ended >= LEAST_ENDED:
            return ends
    return _read_ends(txn, study_id, MOST_READ)


def _read_ends(txn: Txn, study_id: int, limit: int) -> RecentEnds:
    return RecentEnds._make(txn.all(_RECENT_ENDS, study=study_id, limit=limit)[0])
