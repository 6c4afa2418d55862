"""
Draws and proposals: the numbers and params of new trials, within the budget.

Params are a pure function of the seed and the draw, but only the transaction that locks the study's
row knows the draw. On PostgreSQL the row holds the params of the next draws, computed in batches.
So an ask is one statement, and no client computes params while it locks the row.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from studydb.db import Prepared, Txn
from studydb.db.chain import LAZILY
from studydb.db.schema import study
from studydb.db.types import Json
from studydb.domain.life.states import State
from studydb.domain.records import Claimant, Proposal, Study
from studydb.domain.space.search_space import params_hash
from studydb.store import attempts, claims, counters
from studydb.store.claims import LeasedTrial
from studydb.store.studies import HAS_DRAWS, HAS_ROOM, OPEN, THIS

PROPOSALS_PER_BATCH = 64
"""The number of consecutive draws in a batch."""

BATCHES_AHEAD = 2
"""
How many batches after the current batch are computed ahead. A batch is late only if 127
other trials start while a client computes it.
"""

_MOST_CHARACTERS = 1000
"""
The most characters of a proposal's params; studies with longer params ask in several statements.
An ask in a single statement unpacks all batches: with params of 10,000 characters it took four
times as long as an ask in several statements.
"""

_DELETED_BATCHES = 8
"""How many older batches the storing of a batch deletes; an earlier deletion may have failed."""

_DRAW = (
    sa.update(study)
    .where(THIS, OPEN, HAS_DRAWS, HAS_ROOM)
    .values(
        next_number=study.c.next_number + 1,
        next_draw=study.c.next_draw + 1,
        n_counted=study.c.n_counted + 1,
        n_running=sa.case(
            (study.c.max_concurrent.is_(None), study.c.n_running), else_=study.c.n_running + 1
        ),
    )
)
_DRAWN = ((study.c.next_number - 1).label("number"), (study.c.next_draw - 1).label("draw"))

_IF = {False: sa.true(), True: claims.NOTHING_WAITS}

_TAKE = {
    flag: Prepared(_DRAW.where(condition).returning(*_DRAWN)) for flag, condition in _IF.items()
}


class Draw(NamedTuple):
    """The number of a new trial, and the draw from which its params are computed."""

    number: int
    draw: int


class NextDraw(NamedTuple):
    """The draw of the next ask, and whether the study's row has the params of this draw."""

    draw: int
    is_proposed: bool


class Asked(NamedTuple):
    """A new trial, which is already leased, and its draw."""

    leased: LeasedTrial
    draw: int


def _batch_of(draw: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    return sa.cast(draw // PROPOSALS_PER_BATCH, sa.Text)


_IS_PROPOSED = sa.func.coalesce(
    study.c.points.bool_op("?")(_batch_of(study.c.next_draw)), sa.false()
)

_QUEUE = 0x73747564

TURN_TIMEOUT_S = 2.0
"""Seconds that an ask waits in the queue, whose lock any login that may connect can hold."""

RESEND_TIMEOUT_S = TURN_TIMEOUT_S + 1.0
"""Seconds that a duplicate request waits for earlier asks; by then they have left the queue."""


def _turn(timeout_s: float) -> sa.ColumnElement[bool]:
    """
    Make an expression that takes the lock of the queue until the transaction ends.

    CASE evaluates in order, so `lock_timeout` is set only if the lock is not free: to set it costs
    more than to take a free lock. The timeout then applies to all later locks of the transaction.
    """
    queue = (
        sa.literal(_QUEUE, sa.Integer),
        sa.cast(sa.bindparam("study", type_=sa.BigInteger) % 2**31, sa.Integer),
    )
    timeout = sa.func.set_config("lock_timeout", f"{timeout_s * 1000:.0f}", sa.true())
    in_order = sa.case(
        (sa.func.pg_try_advisory_xact_lock(*queue), sa.true()),
        (timeout.is_not(None), sa.func.pg_advisory_xact_lock(*queue).is_not(None)),
    )
    return sa.select(in_order).scalar_subquery()


_TURN = _turn(TURN_TIMEOUT_S)
"""
Asks queue for an advisory lock before they lock the study's row. At each change of a row all
transactions that wait for the row wake, read it and wait again: 300 workers made 260 trials/s
without the queue, and 430 with it. The queue only saves time: the study's row guards the budget,
and the token keeps a duplicate request from taking a second trial.
"""

_QUEUE_UP = Prepared(sa.select(_turn(RESEND_TIMEOUT_S).label("turn")))


def _ask(*conditions: sa.ColumnElement[bool]) -> Prepared:
    last = study.c.next_draw - 1  # RETURNING reads the updated row
    place = postgresql.array([_batch_of(last), sa.cast(last % PROPOSALS_PER_BATCH, sa.Text)])
    drawn = (
        _DRAW.where(*conditions, _IS_PROPOSED)
        .returning(*_DRAWN, study.c.points.op("#>")(place).label("point"))
        .cte("drawn")
    )
    point = {
        "params": drawn.c.point.op("->")(sa.literal("params", sa.Text)),
        "params_hash": drawn.c.point.op("->>")(sa.literal("hash", sa.Text)),
        # Proposals of an older studydb lack a bracket, because it has only bracket 0.
        "bracket": sa.func.coalesce(
            sa.cast(drawn.c.point.op("->>")(sa.literal("bracket", sa.Text)), sa.Integer), 0
        ),
    }
    made = claims.inserting_running(number=drawn.c.number, draw=drawn.c.draw, **point).cte("made")
    begun = attempts.inserting(
        trial_id=made.c.id,
        config=sa.bindparam("constants", type_=Json).op("||")(made.c.params),
    ).cte("begun")
    counted = counters.MOVE.where(sa.exists(sa.select(drawn.c.draw))).cte("counted")
    whole = (
        sa.select(made, drawn.c.draw)
        .join_from(made, drawn, sa.true())
        .where(sa.text(LAZILY))
        .add_cte(begun, counted)
    )
    return Prepared(whole, spell_constants=True)


_ASK = {
    **{(flag, True): _ask(condition, _TURN) for flag, condition in _IF.items()},
    **{(flag, False): _ask(condition) for flag, condition in _IF.items()},
}
"""The statements of `ask`, by its flags `if_nothing_waits` and `queue`."""

_NEXT = {
    flag: Prepared(
        sa.select(study.c.next_draw, _IS_PROPOSED.label("is_proposed")).where(
            THIS, OPEN, HAS_DRAWS, HAS_ROOM, condition
        )
    )
    for flag, condition in _IF.items()
}

_remaining_points = sa.func.coalesce(study.c.points, sa.literal({}, Json)).op("-")(
    sa.bindparam("passed", type_=sa.ARRAY(sa.Text))
)
_PROPOSE = Prepared(
    sa.update(study)
    .where(THIS, study.c.next_draw < sa.bindparam("end"), sa.text(LAZILY))
    .values(points=_remaining_points.op("||")(sa.bindparam("more", type_=Json)))
)


def take(txn: Txn, *, study_id: int, if_nothing_waits: bool = False) -> Draw | None:
    """
    Take a number and a draw for a new trial that is RUNNING from the start.

    Args:
        if_nothing_waits: Whether to take nothing if a trial can be claimed.

    Returns:
        None if the budget is spent, the study is not RUNNING, or `max_concurrent` trials run.
    """
    row = txn.first(_TAKE[if_nothing_waits], study=study_id)
    return None if row is None else Draw._make(row)


def are_kept(study: Study) -> bool:
    """Tell whether the study's row can hold proposals from which SQL can make configs."""
    return study.space.is_flat and study.space.width <= _MOST_CHARACTERS


def ask(
    txn: Txn,
    claimant: Claimant,
    *,
    study: Study,
    if_nothing_waits: bool,
    queue: bool = True,
) -> Asked | None:
    """
    Make a trial of the next draw's proposal, and its first attempt; PostgreSQL only.

    Args:
        queue: Whether to wait in the queue; False after a wait that timed out.

    Returns:
        None if the proposal is not stored yet, and in the cases of `take`.

    Raises:
        Duplicate: The same ask was already stored (its reply was lost).
        LockTimeout: The turn did not come within `TURN_TIMEOUT_S`.
    """
    assert study.searcher is not None  # a study without a searcher has no draws
    row = txn.first(
        _ASK[if_nothing_waits, queue],
        study=study.id,
        study_id=study.id,
        constants=dict(study.space.constants),
        uuid=str(UUID(hex=claimant.token)),
        space_version=study.space_version,
        origin=study.searcher.origin,
        parent_id=None,
        counted=True,
        priority=0,
        **claims.lease_binds(claimant),
        **attempts.first_binds(claimant),
        **counters.binds(key=claimant.token, out_of=None, into=State.RUNNING),
    )
    return None if row is None else Asked(LeasedTrial._make(tuple(row)[:-1]), row.draw)


def await_asks(txn: Txn, *, study_id: int) -> None:
    """
    Wait until every ask that is in the queue now has ended.

    One of them may be an earlier send of the request, and makes its trial even if its client died.

    Raises:
        LockTimeout: The turn did not come within `RESEND_TIMEOUT_S`. By then all earlier asks have
            left the queue, so something other than an ask holds the lock.
    """
    if txn.features.concurrent_writers:
        txn.all(_QUEUE_UP, study=study_id)


def next_of(txn: Txn, *, study_id: int, if_nothing_waits: bool) -> NextDraw | None:
    """Read the next draw without a lock; None in the cases of `take`."""
    row = txn.first(_NEXT[if_nothing_waits], study=study_id)
    return None if row is None else NextDraw._make(row)


def propose(
    txn: Txn, *, study_id: int, batch: int, proposed: Sequence[Proposal], current: int
) -> None:
    """
    Store a batch of proposals, and delete batches before the `current` one.

    A batch whose draws were all taken meanwhile is not stored, because nothing would delete it. All
    workers compute the same params for a batch, so any of them may store it.
    """
    known = [
        {
            "params": dict(one.params),
            "hash": params_hash(one.params),
            "bracket": one.bracket,
        }
        for one in proposed
    ]
    txn.run(
        _PROPOSE,
        study=study_id,
        end=(batch + 1) * PROPOSALS_PER_BATCH,
        passed=[str(earlier) for earlier in range(current - _DELETED_BATCHES, current)],
        more={str(batch): known},
    )
