"""A few of the trials that have not ended, for a status page: never a walk over those that have."""

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import in_state, trial
from studydb.domain.life.states import State

_NUMBERS = sa.select(trial.c.number).where(trial.c.study_id == sa.bindparam("study"))
_MOST: sa.BindParameter[int] = sa.bindparam("most")

# `number + 0`: sorted after the partial index has found them; by the plain column a planner walks
# through the numbers of all trials that have ended.
_QUERIES = {
    State.RUNNING: (
        Prepared(_NUMBERS.where(in_state(State.RUNNING)).order_by(trial.c.number + 0).limit(_MOST)),
    ),
    State.PENDING: (
        Prepared(
            _NUMBERS.where(in_state(State.PENDING), trial.c.ready)
            .order_by(trial.c.resource_class, trial.c.priority, trial.c.number)
            .limit(_MOST)
        ),
        Prepared(
            _NUMBERS.where(in_state(State.PENDING), sa.not_(trial.c.ready))
            .order_by(trial.c.ready_at)
            .limit(_MOST)
        ),
    ),
    State.PAUSED: (Prepared(_NUMBERS.where(in_state(State.PAUSED)).limit(_MOST)),),
}


def numbers(txn: Txn, *, study_id: int, most: int) -> dict[State, list[int]]:
    """
    The numbers of some trials per state: RUNNING, PENDING as they will be claimed, PAUSED.

    Args:
        most: Per state.
    """
    found: dict[State, list[int]] = {}
    for state, queries in _QUERIES.items():
        rows = [row for query in queries for row in txn.all(query, study=study_id, most=most)]
        found[state] = [row.number for row in rows[:most]]
    return found
