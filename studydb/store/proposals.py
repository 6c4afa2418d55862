"""
Draws: numbers and points for new trials, within the budget.

A point is a pure function of its draw, but the draw is known only to the transaction that holds the
study's row. PostgreSQL keeps the points of the next draws in that row, so that an ask is one
statement, and nobody holds what all askers need while a client thinks.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from studydb.db import Prepared, Txn
from studydb.db.chain import LAZILY
from studydb.db.schema import in_state, study, trial
from studydb.db.types import Json
from studydb.domain.life.states import State
from studydb.domain.records import Study
from studydb.domain.space.search_space import params_hash
from studydb.store import attempts, counters, leases
from studydb.store.studies import HAS_DRAWS, HAS_ROOM, OPEN, THIS

BLOCK = 64
"""Draws whose points are proposed together."""

AHEAD = 2
"""
Blocks between the one whose first draw is taken, and the one that is proposed then. It is not late
unless more than a hundred trials are made while one client thinks.
"""

_WIDEST = 1000
"""
Characters of params that are kept: every ask unpacks all blocks. With texts of 10,000 that took
four times as long as an ask in steps, and jsonb ends at a quarter of a GB.
"""

_KEPT = 8
"""Blocks before it that a proposal takes away, should those have been late that were to do it."""

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

_NOTHING_WAITS = ~sa.exists().where(
    trial.c.study_id == sa.bindparam("study"),
    in_state(State.PENDING),
    trial.c.ready,
    trial.c.resource_class == "",
)
_IF = {False: sa.true(), True: _NOTHING_WAITS}

_TAKE = {
    flag: Prepared(_DRAW.where(condition).returning(*_DRAWN)) for flag, condition in _IF.items()
}


def _block_of(draw: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    return sa.cast(draw // BLOCK, sa.Text)


_IS_PROPOSED = sa.func.coalesce(
    study.c.points.bool_op("?")(_block_of(study.c.next_draw)), sa.false()
)

_QUEUE = 0x73747564

TURN_TIMEOUT_S = 2.0
"""How long an ask waits in the queue; every role that may connect can hold an advisory lock."""

RESEND_TIMEOUT_S = TURN_TIMEOUT_S + 1.0
"""How long a resend waits for the asks before it: each that had to wait has left by then."""


def _turn(timeout_s: float) -> sa.ColumnElement[bool]:
    """
    Wait for a turn, until the transaction ends; then the timeout holds for all its locks.

    CASE evaluates in order: the timeout, which costs more than a turn that is free, is set where
    there is something to wait for, and before the wait begins.
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
Askers queue here, not at the study's row: at each change of a row, all who wait for it wake, look
and wait again. 300 askers made 260 trials/s that way, 430 with a queue of their own. The queue
saves time and protects nothing: what an ask may take is guarded by the study's row, and that it
takes it once, by its token.
"""

_QUEUE_UP = Prepared(sa.select(_turn(RESEND_TIMEOUT_S).label("turn")))


def _ask(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    last = study.c.next_draw - 1  # of the row as it is returned
    place = postgresql.array([_block_of(last), sa.cast(last % BLOCK, sa.Text)])
    drawn = (
        _DRAW.where(*conditions, _IS_PROPOSED)
        .returning(*_DRAWN, study.c.points.op("#>")(place).label("point"))
        .cte("drawn")
    )
    point = {
        "params": drawn.c.point.op("->")(sa.literal("params", sa.Text)),
        "params_hash": drawn.c.point.op("->>")(sa.literal("hash", sa.Text)),
    }
    made = leases.inserting_running(number=drawn.c.number, draw=drawn.c.draw, **point).cte("made")
    begun = attempts.inserting(
        trial_id=made.c.id,
        config=sa.bindparam("constants", type_=Json).op("||")(made.c.params),
    ).cte("begun")
    counted = counters.MOVE.where(sa.exists(sa.select(drawn.c.draw))).cte("counted")
    return (
        sa.select(made, drawn.c.draw)
        .join_from(made, drawn, sa.true())
        .where(sa.text(LAZILY))
        .add_cte(begun, counted)
    )


_ASK = {
    **{(flag, True): Prepared(_ask(condition, _TURN)) for flag, condition in _IF.items()},
    **{(flag, False): Prepared(_ask(condition)) for flag, condition in _IF.items()},
}
"""By whether it leaves the draw if a trial waits, and whether it queues."""

_NEXT = {
    flag: Prepared(
        sa.select(study.c.next_draw, _IS_PROPOSED.label("is_proposed")).where(
            THIS, OPEN, HAS_DRAWS, HAS_ROOM, condition
        )
    )
    for flag, condition in _IF.items()
}

_kept = sa.func.coalesce(study.c.points, sa.literal({}, Json)).op("-")(
    sa.bindparam("passed", type_=sa.ARRAY(sa.Text))
)
_PROPOSE = Prepared(
    sa.update(study)
    .where(THIS, study.c.next_draw < sa.bindparam("end"), sa.text(LAZILY))
    .values(points=_kept.op("||")(sa.bindparam("more", type_=Json)))
)


def take(txn: Txn, *, study_id: int, if_nothing_waits: bool = False) -> Any | None:
    """
    Take a number and a draw for a new trial that runs at once.

    Args:
        if_nothing_waits: Leave it if a trial is there to be claimed.

    Returns:
        A row with `number` and `draw`; None when the budget is spent, the study is not RUNNING, or
        `max_concurrent` trials run.
    """
    return txn.first(_TAKE[if_nothing_waits], study=study_id)


def are_kept(study: Study) -> bool:
    """Whether PostgreSQL keeps the study's next points, and can make a config of one."""
    return study.space.is_flat and study.space.width <= _WIDEST


def ask(
    txn: Txn,
    *,
    study: Study,
    worker_id: int,
    token: str,
    lease_s: float,
    if_nothing_waits: bool,
    queue: bool = True,
) -> Any | None:
    """
    Make the trial of the next draw, whose point is known, with its first attempt; PostgreSQL.

    Args:
        queue: False to go to the study's row at once, as the turn did not come.

    Returns:
        A row as `leases.claim` returns it, with `draw`; None as for `take`, or when the point is
        not known.

    Raises:
        Duplicate: The token was used by an earlier send.
        LockTimeout: The turn did not come within `TURN_TIMEOUT_S`.
    """
    assert study.searcher is not None  # or the study would have no draws
    return txn.first(
        _ASK[if_nothing_waits, queue],
        study=study.id,
        study_id=study.id,
        constants=dict(study.space.constants),
        uuid=str(UUID(hex=token)),
        space_version=study.space_version,
        origin=study.searcher.origin,
        parent_id=None,
        counted=True,
        priority=0,
        to_worker=worker_id,
        to_token=token,
        to_lease_s=lease_s,
        **attempts.first_binds(token=token, worker_id=worker_id),
        **counters.binds(key=token, out_of=None, into=State.RUNNING),
    )


def await_asks(txn: Txn, *, study_id: int) -> None:
    """
    Wait until every ask that queues now has had its turn, and has ended.

    One whose client is gone takes its trial all the same, once it comes to the study's row.

    Raises:
        LockTimeout: The turn did not come within `RESEND_TIMEOUT_S`. The asks that queued have had
            theirs, or have given up, by then: the queue is held by what is no ask.
    """
    if txn.features.concurrent_writers:
        txn.all(_QUEUE_UP, study=study_id)


def next_of(txn: Txn, *, study_id: int, if_nothing_waits: bool) -> Any | None:
    """
    Look at the next draw; takes no lock.

    Returns:
        A row with `next_draw` and whether its point is known (`is_proposed`); None as for `take`.
    """
    return txn.first(_NEXT[if_nothing_waits], study=study_id)


def propose(
    txn: Txn, *, study_id: int, block: int, points: Sequence[Mapping[str, Any]], current: int
) -> None:
    """
    Keep the points of a block, and drop those of the blocks before the `current` one.

    A block that has passed meanwhile is not kept: nobody would drop it. Whoever proposes a block
    proposes the same points, so that nobody minds who comes first.
    """
    known = [{"params": dict(params), "hash": params_hash(params)} for params in points]
    txn.run(
        _PROPOSE,
        study=study_id,
        end=(block + 1) * BLOCK,
        passed=[str(earlier) for earlier in range(current - _KEPT, current)],
        more={str(block): known},
    )
