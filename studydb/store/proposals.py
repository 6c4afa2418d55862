"""
Proposals, which hold params of future trials, and the ask, which makes a trial from a proposal.

Only the transaction that locks the study's row knows the draw of a new trial, and this transaction
must be short. So the params of the next draws are computed ahead, outside of any transaction, and
stored as rows of `proposal`. An ask makes its trial from the row of its draw; it computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa

from studydb.db import Chain, Prepared, Txn
from studydb.db.chain import of, of_main
from studydb.db.decision_schema import proposal
from studydb.db.dialect import is_listed
from studydb.db.schema import study, trial
from studydb.db.statement import BulkInsert
from studydb.domain.life.states import State
from studydb.domain.records import Claimant, Proposal
from studydb.domain.space.search_space import params_hash
from studydb.store import attempts, claims, counters
from studydb.store.claims import LeasedTrial
from studydb.store.studies import HAS_DRAWS, HAS_ROOM, OPEN, THIS

MOST_DELETED = 1024
"""The most proposals of taken draws that one statement deletes."""

CLEAN_UP_DRAWS = 4096
"""Once in this many draws, the oldest proposals of taken draws are deleted."""

_OF_NEXT_DRAW = (proposal.c.study_id == study.c.id, proposal.c.draw == study.c.next_draw)


def _proposed(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    found = sa.select(sa.true()).where(*_OF_NEXT_DRAW, *conditions)
    return sa.func.coalesce(found.correlate(study).scalar_subquery(), sa.false())


IS_PROPOSED = _proposed()
"""
True if the proposal of the next draw is stored.

While an ask waits for the study's row, other asks take draws. After the wait, PostgreSQL evaluates
the condition again for the row's new version, but sees other tables as they were when the statement
began. The condition is a subquery with one value, so it finds the proposal of the new draw. An
EXISTS or a join would be planned as a join, which compares the row's new version only with the
proposal of the old draw.
"""

_IS_PROPOSED_AND_FITS = _proposed(is_listed(proposal.c.resource_class, "fitting"))
"""True if the next draw's proposal is stored and its class is listed as `fitting`."""

NEXT_CLASS = (
    sa.select(proposal.c.resource_class).where(*_OF_NEXT_DRAW).correlate(study).scalar_subquery()
)
"""The class of the next draw's proposal; NULL if the proposal is not stored."""


class NextDraw(NamedTuple):
    """
    The draw of the next ask.

    Attributes:
        resource_class: The class of the draw's proposal; None if the proposal is not stored.
    """

    draw: int
    resource_class: str | None

    @property
    def is_proposed(self) -> bool:
        """Whether the draw's proposal is stored."""
        return self.resource_class is not None


_QUEUE = 0x73747564

ADVISORY_LOCK_TIMEOUT_S = 2.0
"""
The longest wait of an ask in the queue. The wait is bounded, because any login that may connect can
hold the queue's lock.
"""

RESEND_TIMEOUT_S = ADVISORY_LOCK_TIMEOUT_S + 1.0
"""
The longest time that a duplicate request waits for earlier asks. It is longer than an ask waits in
the queue, so that all earlier asks have left the queue by then.
"""


def _turn(timeout_s: float) -> sa.ColumnElement[bool]:
    """
    Make an expression that takes the queue's lock, which the transaction holds until it ends.

    CASE evaluates in order, so `lock_timeout` is set only if the lock is not free: setting the
    timeout takes longer than taking a free lock. Once set, the timeout applies to all later locks
    of the transaction.
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


_TURN = _turn(ADVISORY_LOCK_TIMEOUT_S)
"""
Asks wait for an advisory lock (the queue) before they lock the study's row. Without the queue, all
asks that wait for the row would wake at each change of the row, read it and wait again: 300 workers
made 260 trials/s without the queue, and 430 with it. The queue only saves time: the study's row
guards the budget, and the token keeps a duplicate request from making a second trial.
"""

_QUEUE_UP = Prepared(sa.select(_turn(RESEND_TIMEOUT_S).label("turn")))


def _ask(condition: sa.ColumnElement[bool], *, in_queue: bool, must_fit: bool) -> Chain:
    is_proposed = _IS_PROPOSED_AND_FITS if must_fit else IS_PROPOSED
    # CASE evaluates in order, AND does not. So an ask without a proposal does not queue.
    is_ready = sa.case((is_proposed, _TURN), else_=sa.false()) if in_queue else is_proposed
    drawn = (
        sa.update(study)
        .where(THIS, OPEN, HAS_DRAWS, HAS_ROOM, condition, is_ready)
        .values(
            next_number=study.c.next_number + 1,
            next_draw=study.c.next_draw + 1,
            n_counted=study.c.n_counted + 1,
            n_running=sa.case(
                (study.c.max_concurrent.is_(None), study.c.n_running), else_=study.c.n_running + 1
            ),
        )
        .returning((study.c.next_number - 1).label("number"), (study.c.next_draw - 1).label("draw"))
    )
    proposed = (
        *("params", "params_hash", "config", "is_unique", "draw"),
        *("origin", "space_version", "bracket", "resource_class"),
    )
    made = claims.inserting_running(
        proposal.c.study_id == sa.bindparam("study"),
        proposal.c.draw == of("drawn", proposal.c.draw),
        number=of("drawn", trial.c.number),
        **{name: proposal.c[name] for name in proposed},
    )
    return Chain(
        made,
        before={"drawn": drawn},
        begun=attempts.inserting(trial_id=of_main(trial.c.id), config=attempts.CONFIG),
        counted=counters.MOVE,
    )


_ASK = {
    (flag, in_queue, must_fit): _ask(condition, in_queue=in_queue, must_fit=must_fit)
    for flag, condition in claims.MAY_START.items()
    for in_queue in (True, False)
    for must_fit in (True, False)
}
"""
The statements of `ask`. A key has three parts: which claimable trials have precedence over a new
one (see `claims.Unless`), whether the ask waits in the queue, and whether the proposal must fit the
worker.
"""

_NEXT = {
    flag: Prepared(
        sa.select(study.c.next_draw, NEXT_CLASS.label("resource_class")).where(
            THIS, OPEN, HAS_DRAWS, HAS_ROOM, condition
        )
    )
    for flag, condition in claims.MAY_START.items()
}

_KEEP_STUDY = Prepared(sa.select(study.c.id).where(THIS).with_for_update(read=True, key_share=True))

_STORE = BulkInsert(
    proposal,
    common=("study_id",),
    columns=(
        *("draw", "params", "params_hash", "config"),
        *("origin", "space_version", "bracket", "is_unique", "resource_class"),
    ),
    stamped="proposed_at",
    skip_existing=True,
)

_of_study = proposal.c.study_id == sa.bindparam("study")
_lowest = sa.select(sa.func.min(proposal.c.draw)).where(_of_study).scalar_subquery()
_next_draw = sa.select(study.c.next_draw).where(THIS).scalar_subquery()
_most = sa.bindparam("most", MOST_DELETED, sa.BigInteger)
_taken = sa.delete(proposal).where(_of_study, proposal.c.draw < _next_draw)
_DELETE_TAKEN = Prepared(_taken.where(proposal.c.draw >= _next_draw - _most))
"""
While an old snapshot is open, deleted proposals stay in the index. Without the lower bound of the
draw, this statement would read all their entries (335 ms for 400,000).
"""
_DELETE_OLDEST = Prepared(_taken.where(proposal.c.draw < _lowest + _most))

_other = trial.alias("other")
_SKIP_DUPLICATE = Prepared(
    sa.update(study)
    .where(
        THIS,
        sa.func.coalesce(
            sa.select(sa.true())
            .where(
                proposal.c.study_id == study.c.id,
                proposal.c.draw == study.c.next_draw,
                proposal.c.is_unique,
                _other.c.study_id == proposal.c.study_id,
                _other.c.params_hash == proposal.c.params_hash,
                _other.c.is_unique,
            )
            .correlate(study)
            .scalar_subquery(),
            sa.false(),
        ),
    )
    .values(next_draw=study.c.next_draw + 1)
    .returning(study.c.next_draw)
)


def ask(
    txn: Txn,
    claimant: Claimant,
    *,
    study_id: int,
    if_nothing_waits: bool,
    queue: bool = True,
    fits: Sequence[str] | None = None,
    must_fit: bool = False,
) -> LeasedTrial | None:
    """
    Make a trial from the next draw's proposal, and start the trial's first attempt.

    Args:
        if_nothing_waits: Whether to make no trial if a trial can be claimed.
        queue: Whether to wait in the queue; False after a wait that timed out. SQLite has no queue.
        fits: The resource classes whose trials the worker can start; None in a study without
            classes.
        must_fit: Whether the proposal must be of one of the classes `fits`.

    Returns:
        None if the budget or the draws are spent, the study is not RUNNING, `max_concurrent` trials
        run, or the next draw's proposal was not stored when the statement began. With `must_fit`,
        also None if the proposal does not fit. With `if_nothing_waits`, also None if a trial can be
        claimed.

    Raises:
        Duplicate: The same ask was already stored (its reply was lost).
        DuplicateParams: The proposal and a trial with the same params both have `is_unique`.
        LockTimeout: The ask has waited for `ADVISORY_LOCK_TIMEOUT_S`, in the queue or later for
            another lock.
    """
    unless = claims.unless(fits, if_nothing_waits=if_nothing_waits)
    row = txn.chain(
        _ASK[unless, queue and txn.features.concurrent_writers, must_fit],
        (),
        study=study_id,
        study_id=study_id,
        uuid=str(UUID(hex=claimant.token)),
        parent_id=None,
        counted=True,
        priority=0,
        **({"fitting": fits} if must_fit else claims.unless_binds(unless, fits)),
        **claims.lease_binds(claimant),
        **attempts.first_binds(claimant),
        **counters.binds(key=claimant.token, out_of=None, into=State.RUNNING),
    )
    return None if row is None else LeasedTrial._make(row)


def await_asks(txn: Txn, *, study_id: int) -> None:
    """
    On PostgreSQL, wait until every ask that is now in the queue has ended; SQLite has no queue.

    One of these asks may be an earlier send of the caller's request. The server carries this ask
    out even if the ask's client has died.

    Raises:
        LockTimeout: The call has waited for `RESEND_TIMEOUT_S`. By then all earlier asks have
            left the queue, so something other than an ask holds the lock.
    """
    if txn.features.concurrent_writers:
        txn.all(_QUEUE_UP, study=study_id)


def next_of(
    txn: Txn, *, study_id: int, if_nothing_waits: bool, fits: Sequence[str] | None = None
) -> NextDraw | None:
    """
    Read the next draw without a lock.

    Returns:
        None if an ask would make no trial even with a proposal: the budget or the draws are spent,
        the study is not RUNNING, or `max_concurrent` trials run. With `if_nothing_waits`, also None
        if a trial can be claimed.
    """
    unless = claims.unless(fits, if_nothing_waits=if_nothing_waits)
    row = txn.first(_NEXT[unless], study=study_id, **claims.unless_binds(unless, fits))
    return None if row is None else NextDraw._make(row)


def store(txn: Txn, *, study_id: int, proposed: Mapping[int, Proposal]) -> None:
    """
    Store proposals by draw; a draw that has a proposal keeps it.

    Also delete the proposals of the last `MOST_DELETED` taken draws. A call stores fewer proposals
    than that, so it can also delete proposals that an earlier call had to leave, because their
    draws were not taken yet. When a draw that is a multiple of `CLEAN_UP_DRAWS` is stored, the
    oldest proposals of taken draws are deleted, too.

    The study's row is locked, so that the study is not deleted meanwhile: nothing would delete the
    proposals of a deleted study. If the study was deleted before, nothing is stored.
    """
    if txn.first(_KEEP_STUDY, study=study_id) is None:
        return
    rows = [
        (
            *(draw, dict(one.params), params_hash(one.params), dict(one.config)),
            *(str(one.origin), one.space_version, one.bracket, one.is_unique or None),
            one.resource_class,
        )
        for draw, one in sorted(proposed.items())
    ]
    txn.insert_many(_STORE, rows, study_id=study_id)
    txn.run(_DELETE_TAKEN, study=study_id)
    if any(draw % CLEAN_UP_DRAWS == 0 for draw in proposed):
        txn.run(_DELETE_OLDEST, study=study_id)


def skip_duplicate(txn: Txn, *, study_id: int) -> bool:
    """
    Skip the next draw if its proposal and a trial with the same params both have `is_unique`.

    The number of trials does not change.
    """
    return txn.first(_SKIP_DUPLICATE, study=study_id) is not None
