"""
What searchers learn from: the trials of a study with their last values.

A trial gets its number under the lock of the study's row. So if a number is visible, all lower
numbers are visible, too. Therefore a reader that knows all trials up to a number reads only the
trials with higher numbers, and the trials that had not ended at its last read. The reader needs
neither a sequence nor a clock.

What a searcher sees of an ended trial changes only if the trial is invalidated, if its invalidation
is undone, or if it is cloned; a person can change the config only of a trial that has not ended.
Therefore the reader also reads which trials are invalidated, from an index that holds only these
trials. It learns of a clone from the clone's row, which has a higher number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import structs

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import trial
from studydb.domain.life.states import FINAL, Origin, Reason, State
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
    trial.c.parent_id,
    trial.c.changed,
).where(trial.c.study_id == sa.bindparam("study"))

_LISTED = Prepared(_SEEN.where(is_listed(trial.c.number, "numbers")).order_by(trial.c.number))
_LATER = Prepared(
    _SEEN.where(trial.c.number > sa.bindparam("after_number"))
    .order_by(trial.c.number)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)

_INVALID = Prepared(
    sa.select(trial.c.number)
    .where(trial.c.study_id == sa.bindparam("study"), trial.c.invalidated_at.is_not(None))
    .order_by(trial.c.number)
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
    """
    A trial as a reader of the history knows it.

    Attributes:
        replicate_of: The id of the trial that this trial repeats; not used yet.
        parent_id: The id of the trial of which this trial is a clone.
    """

    id: int
    uuid: str
    params_hash: str
    replicate_of: int | None
    parent_id: int | None
    is_invalid: bool
    observation: Observation

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended."""
        return self.observation.state in FINAL

    def hidden(self) -> "SeenTrial":
        """Return a trial that models must not learn from: without its value, as INVALIDATED."""
        observation = structs.replace(
            self.observation, reason=Reason.INVALIDATED, values=None, scores=None
        )
        return self._replace(observation=observation)


def listed(
    txn: Txn, *, study_id: int, objective: Objective, numbers: Sequence[int]
) -> list[SeenTrial]:
    """Read the trials with these numbers."""
    rows = txn.all(_LISTED, study=study_id, numbers=numbers)
    return [_read(row, objective) for row in rows]


def later(
    txn: Txn, *, study_id: int, objective: Objective, after_number: int, limit: int
) -> list[SeenTrial]:
    """Read the first `limit` trials with numbers above `after_number`, in ascending order."""
    rows = txn.all(_LATER, study=study_id, after_number=after_number, limit=limit)
    return [_read(row, objective) for row in rows]


def invalid(txn: Txn, *, study_id: int) -> list[int]:
    """Read the numbers of the invalidated trials, ascending."""
    return [row.number for row in txn.all(_INVALID, study=study_id)]


def mean_time_s(txn: Txn, *, study_id: int, n_trials: int) -> float | None:
    """
    Return the mean training time of the `n_trials` ended trials with the highest numbers.

    Trials without a training time are left out. If none of the trials has one, the answer is None.
    """
    mean_s = txn.all(_MEAN_TIME, study=study_id, limit=n_trials)[0].mean_s
    return None if mean_s is None else float(mean_s)


def _read(row: Any, objective: Objective) -> SeenTrial:
    has_value = row.last_value is not None
    seen = SeenTrial(
        row.id,
        row.uuid,
        row.params_hash,
        row.replicate_of,
        row.parent_id,
        row.invalidated_at is not None,
        Observation(
            number=row.number,
            params=row.params,
            state=State(row.state),
            reason=None if row.reason is None else Reason(row.reason),
            values=(row.last_value,) if has_value else None,
            scores=(objective.score(row.last_value),) if has_value else None,
            last_step=row.last_step,
            origin=Origin(row.origin),
            feasible=row.feasible,
        ),
    )
    # The values of a changed trial come from other values of its parameters than `params`.
    return seen.hidden() if seen.is_invalid or row.changed else seen
