"""
What searchers learn from: the trials of a study with their last values.

A trial gets its number under the lock of the study's row. So if a number is visible, all lower
numbers are visible, too. A reader that knows all trials up to a number therefore reads only two
kinds of trials: those with higher numbers, and those that had not ended at its last read. The
reader needs neither a sequence nor a clock.

An ended trial changes only if it is invalidated, which no operation does yet. Such an operation
will append an event. Readers will then read the new events of this kind, too (by the index
`event_study`), and the trials that these events name.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import trial
from studydb.domain.life.states import Origin, Reason, State
from studydb.domain.objective import Objective
from studydb.domain.searching import Observation

_SEEN = sa.select(
    trial.c.id,
    trial.c.uuid,
    trial.c.number,
    trial.c.params,
    trial.c.params_hash,
    trial.c.state,
    trial.c.reason,
    trial.c.last_value,
    trial.c.last_step,
    trial.c.origin,
    trial.c.feasible,
    trial.c.replicate_of,
    trial.c.invalidated_at,
).where(trial.c.study_id == sa.bindparam("study"))

_LISTED = Prepared(_SEEN.where(is_listed(trial.c.number, "numbers")).order_by(trial.c.number))
_LATER = Prepared(
    _SEEN.where(trial.c.number > sa.bindparam("after_number"))
    .order_by(trial.c.number)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)

_latest = (
    sa.select(trial.c.time_total_s)
    .where(trial.c.study_id == sa.bindparam("study"), trial.c.ended_at.is_not(None))
    .order_by(trial.c.number.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
    .subquery()
)
_MEAN_TIME = Prepared(sa.select(sa.func.avg(_latest.c.time_total_s).label("mean_s")))


class SeenTrial(NamedTuple):
    """A trial as a reader of the history knows it; `replicate_of` is the id of another trial."""

    id: int
    uuid: str
    params_hash: str
    replicate_of: int | None
    observation: Observation

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended."""
        return self.observation.reason is not None


def listed(
    txn: Txn, *, study_id: int, objective: Objective, numbers: Sequence[int]
) -> list[SeenTrial]:
    """Read the trials with these numbers."""
    rows = txn.all(_LISTED, study=study_id, numbers=numbers)
    return [_read(row, objective) for row in rows]


def later(
    txn: Txn, *, study_id: int, objective: Objective, after_number: int, limit: int
) -> list[SeenTrial]:
    """Read up to `limit` trials after a number, in ascending order."""
    rows = txn.all(_LATER, study=study_id, after_number=after_number, limit=limit)
    return [_read(row, objective) for row in rows]


def mean_time_s(txn: Txn, *, study_id: int, n_trials: int) -> float | None:
    """Return the mean training time of the last `n_trials` ended trials; None if none reported."""
    mean_s = txn.all(_MEAN_TIME, study=study_id, limit=n_trials)[0].mean_s
    return None if mean_s is None else float(mean_s)


def _read(row: Any, objective: Objective) -> SeenTrial:
    is_invalid = row.invalidated_at is not None
    has_value = row.last_value is not None and not is_invalid
    reason = None if row.reason is None else Reason(row.reason)
    return SeenTrial(
        row.id,
        row.uuid,
        row.params_hash,
        row.replicate_of,
        Observation(
            number=row.number,
            params=row.params,
            state=State(row.state),
            reason=Reason.INVALIDATED if is_invalid else reason,
            values=(row.last_value,) if has_value else None,
            scores=(objective.score(row.last_value),) if has_value else None,
            last_step=row.last_step,
            origin=Origin(row.origin),
            feasible=row.feasible,
        ),
    )
