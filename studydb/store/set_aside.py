"""
Setting a trial aside: making the next draw's trial PENDING, for a worker that it fits.

Draws are taken in order. If trials ask for different resources, the trial of the next draw may not
fit a free worker. This trial then becomes PENDING, so that the worker can take the following draw.
"""

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import proposal
from studydb.db.schema import in_state, study, trial
from studydb.domain.life.states import State
from studydb.store.proposals import NEXT_CLASS
from studydb.store.studies import HAS_DRAWS, OPEN, THIS
from studydb.store.trials import NEW, inserting

MOST = 1000
"""
If this many trials of one class wait, no further trial of this class is set aside. If the next draw
is of this class, this draw and all later draws wait. 1,000 waiting trials give work to each worker
that can run trials of the class. More waiting trials would only add rows, and not end the study
earlier.
"""

MOST_OF_MODEL = 16
"""
The limit instead of `MOST` if the searcher learns from the study's trials. The longer a trial
waits, the more results its proposal does not take into account.
"""

_of_next_class = (
    trial.c.study_id == study.c.id,
    in_state(State.PENDING),
    trial.c.ready,
    trial.c.resource_class == NEXT_CLASS,
)
_MOST = sa.bindparam("most", type_=sa.BigInteger)
_waiting = sa.select(trial.c.id).where(*_of_next_class).limit(_MOST).correlate(study).subquery()
N_WAITING = sa.select(sa.func.count()).select_from(_waiting).correlate(study).scalar_subquery()
"""
How many PENDING trials that are ready have the class of the next draw's proposal; at most `most`
are counted. To count 1,000 takes 0.1 to 0.2 ms, so the statement by which idle workers poll reads
`FIRST_WAITING` instead.
"""

FIRST_WAITING = (
    sa.select(trial.c.number)
    .where(*_of_next_class)
    .order_by(trial.c.priority, trial.c.number)
    .limit(1)
    .correlate(study)
    .scalar_subquery()
)
"""
The number of the first trial that `N_WAITING` counts. It changes when a worker claims this trial,
and then fewer trials wait. To read the number takes one look-up, however many trials wait.
"""

_TAKE_DRAW = Prepared(
    sa.update(study)
    .where(
        THIS,
        OPEN,
        HAS_DRAWS,
        study.c.next_draw == sa.bindparam("of_draw", type_=sa.BigInteger),
        NEXT_CLASS.is_not(None),
        N_WAITING < _MOST,
    )
    .values(
        next_number=study.c.next_number + 1,
        next_draw=study.c.next_draw + 1,
        n_counted=study.c.n_counted + 1,
    )
    .returning((study.c.next_number - 1).label("number"))
)

_PROPOSED = (
    *("params", "params_hash", "config", "is_unique", "draw"),
    *("origin", "space_version", "bracket", "resource_class"),
)
_MAKE = Prepared(
    inserting(
        NEW
        | {"state": State.PENDING, "attempt": 0}
        | {name: proposal.c[name] for name in _PROPOSED},
        proposal.c.study_id == sa.bindparam("study"),
        proposal.c.draw == sa.bindparam("of_draw", type_=sa.BigInteger),
    )
)


_FULL_CLASS = Prepared(
    sa.select(NEXT_CLASS.label("resource_class")).where(THIS, N_WAITING >= _MOST)
)


def take_draw(txn: Txn, *, study_id: int, draw: int, most: int) -> int | None:
    """
    Take the next draw and a number for its trial, and lock the study's row.

    Returns:
        The number. None if `draw` is not the next draw any more or has no proposal, the budget or
        the draws are spent, the study is not RUNNING, or `most` trials of the proposal's class wait
        already.
    """
    row = txn.first(_TAKE_DRAW, study=study_id, of_draw=draw, most=most)
    return None if row is None else int(row.number)


def full_class(txn: Txn, *, study_id: int, most: int) -> str | None:
    """Return the next proposal's class if `most` trials of this class wait; else None."""
    row = txn.first(_FULL_CLASS, study=study_id, most=most)
    return None if row is None else str(row.resource_class)


def make(txn: Txn, *, study_id: int, draw: int, number: int, uuid: str) -> None:
    """
    Insert the PENDING trial of a draw that `take_draw` has taken, from the draw's proposal.

    Raises:
        DuplicateParams: The proposal and a trial with the same params both have `is_unique`.
    """
    txn.run(
        _MAKE,
        study=study_id,
        study_id=study_id,
        of_draw=draw,
        number=number,
        uuid=uuid,
        parent_id=None,
        counted=True,
        priority=0,
    )
