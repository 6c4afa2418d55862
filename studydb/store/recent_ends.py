"""How the newest trials of a study ended, and how fast: for a status page, at a flat cost."""

from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import trial
from studydb.domain.life.states import Reason

NEWEST = 1_000
"""So many trials are looked at, by number: nearly all studies have fewer."""

_NEWEST = (
    sa.select(trial.c.reason, trial.c.started_at, trial.c.ended_at)
    .where(trial.c.study_id == sa.bindparam("study"))
    .order_by(trial.c.number.desc())
    .limit(NEWEST)
    .subquery()
)


def _count_of(*reasons: Reason) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((sa.or_(*(_NEWEST.c.reason == each for each in reasons)), 1)))


_PACE = Prepared(
    sa.select(
        sa.func.count().label("looked_at"),
        sa.func.count(_NEWEST.c.ended_at).label("ended"),
        _count_of(Reason.COMPLETED).label("completed"),
        _count_of(Reason.EARLY_STOPPED, Reason.RULE_STOPPED).label("stopped_early"),
        _count_of(Reason.CANCELLED).label("cancelled"),
        sa.func.min(_NEWEST.c.started_at).label("began_at"),
        sa.func.max(_NEWEST.c.ended_at).label("last_end_at"),
    )
)


def pace(txn: Txn, *, study_id: int) -> Any:
    """Counts of the newest trials by how they ended, the first start and the last end."""
    return txn.all(_PACE, study=study_id)[0]
