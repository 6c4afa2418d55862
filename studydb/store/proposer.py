"""
The proposer's lease, the draws that need proposals, and the hashes of params that exist.

The proposer is the process that fits a study's model. A study has one proposer at a time. The
proposer holds a lease, which is in the study's row. The lease is free if `proposer_expires_at` is
NULL or has passed, or if the worker that holds it has ended. The token stays in the row until
another process takes the lease, so that a duplicate request to store proposals is recognized.
"""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import proposal
from studydb.db.dialect import after, is_listed, now
from studydb.db.schema import study, trial, worker
from studydb.domain.records import Process
from studydb.store import claims, workers
from studydb.store.proposals import IS_PROPOSED
from studydb.store.studies import HAS_DRAWS, HAS_ROOM, OPEN, THIS, existing

_STUDY = sa.bindparam("study", type_=sa.BigInteger)
_TOKEN = sa.bindparam("proposer", type_=sa.Text)
_MINE = study.c.proposer_token == _TOKEN

_holder_has_ended = sa.exists().where(
    worker.c.id == study.c.proposer_worker_id, worker.c.ended_at.is_not(None)
)
_IS_FREE = sa.or_(
    study.c.proposer_expires_at.is_(None),
    study.c.proposer_expires_at <= now(),
    _holder_has_ended,
)
_first_without_proposal = (
    sa.select(sa.func.coalesce(sa.func.max(proposal.c.draw) + 1, study.c.next_draw))
    .where(proposal.c.study_id == study.c.id, proposal.c.draw >= study.c.next_draw)
    .correlate(study)
    .scalar_subquery()
)
_EXPIRES = after(now(), sa.bindparam("lease_s", type_=sa.Double))
_HELD = (THIS, _MINE, study.c.proposer_expires_at.is_not(None))

_LOOK = {
    flag: Prepared(
        sa.select(
            study.c.next_draw,
            IS_PROPOSED.label("is_proposed"),
            sa.or_(_IS_FREE, _MINE).label("is_free"),
        ).where(THIS, OPEN, HAS_DRAWS, HAS_ROOM, condition)
    )
    for flag, condition in claims.MAY_START.items()
}

_TAKE = Prepared(
    sa.update(study)
    .where(THIS, OPEN, HAS_DRAWS, sa.or_(_IS_FREE, _MINE), sa.not_(IS_PROPOSED))
    .values(
        proposer_token=_TOKEN,
        proposer_worker_id=sa.bindparam("holder", type_=sa.BigInteger),
        proposer_expires_at=_EXPIRES,
    )
    .returning(study.c.id)
)
_RENEW = Prepared(
    sa.update(study).where(*_HELD).values(proposer_expires_at=_EXPIRES).returning(study.c.id)
)
_RELEASE = Prepared(
    sa.update(study).where(*_HELD).values(proposer_expires_at=None).returning(study.c.id)
)
_HOLDER = Prepared(
    sa.select(study.c.proposer_token, *(worker.c[name] for name in workers.PROCESS_FIELDS))
    .join(worker, worker.c.id == study.c.proposer_worker_id)
    .where(THIS, study.c.proposer_expires_at.is_not(None))
)
_IS_LAST = Prepared(sa.select(study.c.id).where(THIS, _MINE))

_OUTLOOK = Prepared(
    sa.select(
        _first_without_proposal.label("draw"),
        study.c.next_draw,
        study.c.num_draws,
        study.c.num_trials,
        study.c.n_counted,
    ).where(THIS)
)

_END_DRAWS = Prepared(sa.update(study).where(THIS).values(num_draws=_first_without_proposal))

_known = [
    sa.select(trial.c.params_hash).where(
        trial.c.study_id == _STUDY, is_listed(trial.c.params_hash, "hashes")
    ),
    sa.select(proposal.c.params_hash).where(
        proposal.c.study_id == _STUDY,
        proposal.c.draw >= sa.bindparam("from_draw", type_=sa.BigInteger),
        is_listed(proposal.c.params_hash, "hashes"),
    ),
]
_KNOWN = Prepared(sa.union_all(*_known))

_ALL_HASHES = Prepared(
    sa.union_all(
        sa.select(trial.c.params_hash).where(trial.c.study_id == _STUDY),
        sa.select(proposal.c.params_hash).where(proposal.c.study_id == _STUDY),
    )
)


class Look(NamedTuple):
    """
    The state of a study's next draw and of the proposer's lease.

    Attributes:
        is_proposed: Whether the next draw has a proposal, from which an ask can make a trial.
        is_free: Whether no other token has the lease now.
    """

    draw: int
    is_proposed: bool
    is_free: bool


class Outlook(NamedTuple):
    """
    Which draw needs a proposal next, and how many more proposals the study needs.

    Attributes:
        draw: The first draw without a proposal.
        next_draw: The draw of the next ask.
        n_left: How many more proposals `num_trials` and `num_draws` allow; None for no limit.
    """

    draw: int
    next_draw: int
    n_left: int | None

    @property
    def end(self) -> int | None:
        """The first draw for which no proposal is needed; None for no limit."""
        return None if self.n_left is None else self.draw + self.n_left


def look(
    txn: Txn,
    *,
    study_id: int,
    token: str,
    if_nothing_waits: bool,
    fits: Sequence[str] | None = None,
) -> Look | None:
    """
    Read, without a lock, the state of the next draw and of the proposer's lease.

    Returns:
        None if an ask would make no trial even with a proposal: the study is not RUNNING, its
        budget or its draws are spent, or `max_concurrent` trials run. With `if_nothing_waits`, also
        None if a trial can be claimed.
    """
    unless = claims.unless(fits, if_nothing_waits=if_nothing_waits)
    binds = claims.unless_binds(unless, fits)
    row = txn.first(_LOOK[unless], study=study_id, proposer=token, **binds)
    return None if row is None else Look(row.next_draw, bool(row.is_proposed), bool(row.is_free))


def take(txn: Txn, *, study_id: int, token: str, worker_id: int, lease_s: float) -> bool:
    """
    Take the lease if the lease is free, or this token holds it already.

    Returns:
        False if another process has the lease, the next draw has a proposal, the study is not
        RUNNING, or its budget or its draws are spent.
    """
    taken = txn.count(_TAKE, study=study_id, proposer=token, holder=worker_id, lease_s=lease_s)
    return taken == 1


def renew(txn: Txn, *, study_id: int, token: str, lease_s: float) -> bool:
    """Extend the lease; False if this token does not hold the lease any more."""
    return txn.count(_RENEW, study=study_id, proposer=token, lease_s=lease_s) == 1


def release(txn: Txn, *, study_id: int, token: str) -> bool:
    """Give up the lease, and lock the study's row; False if this token does not hold the lease."""
    return txn.count(_RELEASE, study=study_id, proposer=token) == 1


def holder(txn: Txn, *, study_id: int) -> tuple[str, Process] | None:
    """
    Read which token and which process took the lease last; the lease may have expired.

    Returns:
        None if the lease was given up, or never taken.
    """
    row = txn.first(_HOLDER, study=study_id)
    return None if row is None else (row.proposer_token, workers.process_of(row))


def is_last(txn: Txn, *, study_id: int, token: str) -> bool:
    """Tell whether this token was the last to take the lease."""
    return txn.first(_IS_LAST, study=study_id, proposer=token) is not None


def outlook(txn: Txn, *, study_id: int) -> Outlook:
    """
    Read the first draw without a proposal; exact if this transaction locks the study's row.

    Raises:
        UnknownStudy: The study was deleted.
    """
    row = existing(txn.first(_OUTLOOK, study=study_id))
    limits = []
    if row.num_trials is not None:
        limits.append(row.num_trials - row.n_counted - (row.draw - row.next_draw))
    if row.num_draws is not None:
        limits.append(row.num_draws - row.draw)
    return Outlook(row.draw, row.next_draw, max(0, min(limits)) if limits else None)


def end_draws(txn: Txn, *, study_id: int) -> None:
    """End the study's draws with its last stored proposal."""
    txn.run(_END_DRAWS, study=study_id)


def known_hashes(txn: Txn, *, study_id: int, from_draw: int, hashes: list[str]) -> set[str]:
    """Return which `hashes` belong to a trial, or to a proposal of a draw from `from_draw` on."""
    rows = txn.all(_KNOWN, study=study_id, from_draw=from_draw, hashes=hashes)
    return {row.params_hash for row in rows}


def all_hashes(txn: Txn, *, study_id: int) -> set[str]:
    """Read the hashes of the params of all trials and proposals."""
    return {row.params_hash for row in txn.all(_ALL_HASHES, study=study_id)}
