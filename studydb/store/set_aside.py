"""
Trials that are made of a draw's proposal without being leased, for workers that fit them.

Draws are taken in order. Where each trial asks for something else, the next draw's trial may not
fit a free worker. So that this worker can go on to the draw after it, the trial becomes PENDING.
"""

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import proposal
from studydb.db.schema import in_state, study, trial
from studydb.domain.life.states import State
from studydb.store.proposals import NEXT_CLASS
from studydb.store.studies import HAS_DRAWS, OPEN, THIS
from studydb.store.trials import NEW, inserting

MOST = 16
"""
How many trials of one class wait at most, before no further trial of it is set aside. More would
not end the study earlier, because the workers that fit them take longest; but a searcher that
learns would have proposed them with less knowledge.
"""

_waiting = (
    sa.select(trial.c.id)
    .where(
        trial.c.study_id == study.c.id,
        in_state(State.PENDING),
        trial.c.ready,
        trial.c.resource_class == NEXT_CLASS,
    )
    .limit(MOST)
    .correlate(study)
    .subquery()
)
N_WAITING = sa.select(sa.func.count()).select_from(_waiting).correlate(study).scalar_subquery()
"""How many trials wait of the class of the next draw's proposal; at most `MOST` are counted."""

_TAKE_DRAW = Prepared(
    sa.update(study)
    .where(
        THIS,
        OPEN,
        HAS_DRAWS,
        study.c.next_draw == sa.bindparam("of_draw", type_=sa.BigInteger),
        NEXT_CLASS.is_not(None),
        N_WAITING < MOST,
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


def take_draw(txn: Txn, *, study_id: int, draw: int) -> int | None:
    """
    Take the next draw and a number for its trial, and lock the study's row.

    Returns:
        The number. None if `draw` is not the next one any more, the budget is spent, the study is
        not RUNNING, or `MOST` trials of its class wait already.
    """
    row = txn.first(_TAKE_DRAW, study=study_id, of_draw=draw)
    return None if row is None else int(row.number)


def make(txn: Txn, *, study_id: int, draw: int, number: int, uuid: str) -> None:
    """
    Insert the PENDING trial of a draw that was taken, from the draw's proposal.

    Raises:
        DuplicateParams: The proposal is to be unique, and a trial has its params.
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
