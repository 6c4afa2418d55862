"""Attempts: one row per execution of a trial, with its config, its worker and its end."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.chain import of_main
from studydb.db.dialect import is_object, now
from studydb.db.schema import NOT_SUPERSEDED, attempt, checkpoint, result, trial
from studydb.db.types import Json
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.failures import Failure
from studydb.domain.life.decisions import Verdict
from studydb.domain.life.states import Reason
from studydb.domain.listed_rows import AttemptDetails
from studydb.domain.records import Claimant, Lease
from studydb.store.trials import verdict_binds

_THIS = (attempt.c.trial_id == sa.bindparam("trial"), attempt.c.attempt == sa.bindparam("no"))
_GIVEN = (
    "trial_id",
    "attempt",
    "study_id",
    "token",
    "worker_id",
    "config",
    "restored_id",
    "start_step",
)

_NEW = {
    "live_through": sa.literal(NOT_SUPERSEDED, attempt.c.live_through.type),
    "flush_no": sa.literal(0),
    "started_at": now(),
}


_config = of_main(trial.c.config)
CONFIG = sa.case((is_object(_config), _config), else_=sa.literal({}, Json))
"""
The config of an attempt, from its trial's row. If the trial's config is not a JSON object, the
attempt's config is {}, and the attempt does not run (see `Claim.misfit`).
"""


def inserting(**known: sa.ColumnElement[Any]) -> sa.Insert:
    """Make the INSERT … SELECT of an attempt; an expression in `known` replaces a column's bind."""
    given = {name: sa.bindparam(name, type_=attempt.c[name].type) for name in _GIVEN}
    row = given | known | _NEW
    return sa.insert(attempt).from_select([*row], sa.select(*row.values()))


_BEGUN_FROM_CHECKPOINTS = Prepared(
    sa.select(trial.c.number)
    .join(attempt, attempt.c.trial_id == trial.c.id)
    .where(
        trial.c.study_id == sa.bindparam("study"),
        attempt.c.attempt == 1,
        attempt.c.restored_id.is_not(None),
    )
)

_BEGIN_AT = Prepared(
    sa.update(attempt)
    .where(*_THIS)
    .values(start_step=sa.bindparam("to_start", type_=sa.BigInteger))
)

_SUPERSEDE = Prepared(
    sa.update(attempt)
    .where(
        attempt.c.trial_id == sa.bindparam("trial"),
        attempt.c.attempt < sa.bindparam("no"),
        attempt.c.live_through >= sa.bindparam("first"),
    )
    .values(live_through=sa.bindparam("first", type_=sa.BigInteger) - 1)
)

_ENDED = ("flush_no", "reason", "verdict", "verdict_reason", "verdict_by")
_DETAILS = (
    *("error_type", "error_message", "traceback"),
    *("log_dir", "log_tail", "start", "start_s", "provenance"),
)
END = (
    sa.update(attempt)
    .where(*_THIS, attempt.c.ended_at.is_(None))
    .values(
        {name: sa.bindparam(f"to_{name}") for name in (*_ENDED, *_DETAILS)} | {"ended_at": now()}
    )
)
_END = Prepared(END)
_SET_DEVICES = Prepared(
    sa.update(attempt)
    .where(attempt.c.token == sa.bindparam("of_token"), attempt.c.ended_at.is_(None))
    .values(devices=sa.bindparam("to_devices"))
)


class ClaimedAttempt(NamedTuple):
    """The columns of an attempt's row that answer a duplicate claim."""

    trial_id: int
    worker_id: int | None
    config: dict[str, Any]
    restored_id: int | None
    ended_at: datetime | None


_BY_TOKEN = Prepared(
    sa.select(*(attempt.c[name] for name in ClaimedAttempt._fields)).where(
        attempt.c.token == sa.bindparam("by_token")
    )
)


class AttemptRow(NamedTuple):
    """The columns of an attempt's row that answer a duplicate request."""

    token: str
    worker_id: int | None
    config: dict[str, Any]
    flush_no: int
    verdict: str | None
    verdict_reason: str | None
    verdict_by: str | None


class HowEnded(NamedTuple):
    reason: str | None
    error_type: str | None


class ReachedStep(NamedTuple):
    """
    How an attempt ended, and the last step that it has reported.

    For an attempt that has reported nothing, `step` is the step before its `start_step`.
    """

    reason: str | None
    error_type: str | None
    step: int


_FIND = Prepared(sa.select(*(attempt.c[name] for name in AttemptRow._fields)).where(*_THIS))
_last_step = (
    sa.select(sa.func.max(result.c.step))
    .where(
        result.c.study_id == attempt.c.study_id,
        result.c.trial_id == attempt.c.trial_id,
        result.c.attempt == attempt.c.attempt,
    )
    .scalar_subquery()
)
_REACHED = Prepared(
    sa.select(
        attempt.c.reason,
        attempt.c.error_type,
        sa.func.coalesce(_last_step, attempt.c.start_step - 1).label("step"),
    )
    .where(
        attempt.c.trial_id == sa.bindparam("trial"),
        attempt.c.attempt <= sa.bindparam("no"),
        attempt.c.attempt > sa.bindparam("no") - sa.bindparam("limit", type_=sa.Integer),
    )
    .order_by(attempt.c.attempt)
)
_newest_saved = sa.select(sa.func.coalesce(sa.func.max(checkpoint.c.attempt), 0)).where(
    checkpoint.c.trial_id == sa.bindparam("trial")
)
_SINCE_CHECKPOINT = Prepared(
    sa.select(attempt.c.reason, attempt.c.error_type)
    .where(
        attempt.c.trial_id == sa.bindparam("trial"),
        attempt.c.attempt < sa.bindparam("no"),
        attempt.c.attempt > _newest_saved.scalar_subquery(),
    )
    .order_by(attempt.c.attempt.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_OF_TRIAL = Prepared(
    sa.select(*(attempt.c[name] for name in AttemptDetails._fields))
    .where(attempt.c.trial_id == sa.bindparam("trial"))
    .order_by(attempt.c.attempt)
)


def first_binds(claimant: Claimant) -> dict[str, Any]:
    """Return what `inserting()` binds for a first attempt, but not its ids and its `config`."""
    return {
        "attempt": 1,
        "token": claimant.token,
        "worker_id": claimant.worker_id,
        "restored_id": None,
        "start_step": 1,
    }


def set_start(txn: Txn, *, lease: Lease, step: int) -> None:
    """Replace an attempt's first step, for example if the attempt restores an older checkpoint."""
    txn.run(_BEGIN_AT, trial=lease.trial_id, no=lease.attempt, to_start=step)


def begun_from_checkpoints(txn: Txn, *, study_id: int) -> set[int]:
    """Read the numbers of the trials whose first attempt has restored a checkpoint."""
    return {row.number for row in txn.all(_BEGUN_FROM_CHECKPOINTS, study=study_id)}


def begin_at(txn: Txn, *, lease: Lease, step: int) -> None:
    """
    Store an attempt's first step; live results of earlier attempts then end before this step.

    `step` need not follow the checkpoint's step: a function may ignore its checkpoint and begin at
    step 1.
    """
    set_start(txn, lease=lease, step=step)
    txn.run(_SUPERSEDE, trial=lease.trial_id, no=lease.attempt, first=step)


def end(
    txn: Txn,
    *,
    lease: Lease,
    flush_no: int,
    reason: Reason,
    verdict: Verdict | None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
) -> None:
    """Store an attempt's end, and `flush_no`, by which a duplicate request is recognized."""
    txn.run(
        _END,
        trial=lease.trial_id,
        **end_binds(
            lease=lease,
            flush_no=flush_no,
            reason=reason,
            verdict=verdict,
            failure=failure,
            process=process,
        ),
    )


def end_binds(
    *,
    lease: Lease,
    flush_no: int,
    reason: Reason,
    verdict: Verdict | None = None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
) -> dict[str, Any]:
    """Return the binds of `END`, except the id of the trial."""
    return {
        "no": lease.attempt,
        "to_flush_no": flush_no,
        "to_reason": str(reason),
        **verdict_binds(verdict),
        "to_error_type": failure and failure.type,
        "to_error_message": failure and failure.message,
        "to_traceback": failure and failure.traceback,
        "to_log_dir": process and process.log_dir,
        "to_log_tail": process and process.log_tail,
        "to_start": process and process.start,
        "to_start_s": process and process.start_s,
        "to_provenance": process and process.code,
    }


def set_devices(txn: Txn, *, lease: Lease, names: Sequence[str]) -> None:
    """Store which devices an attempt holds, unless the attempt has ended."""
    txn.run(_SET_DEVICES, of_token=lease.token, to_devices=list(names))


def by_token(txn: Txn, *, token: str) -> ClaimedAttempt | None:
    """Find the attempt that a claim with this token made."""
    row = txn.first(_BY_TOKEN, by_token=token)
    return None if row is None else ClaimedAttempt._make(row)


def find(txn: Txn, *, trial_id: int, attempt_no: int) -> AttemptRow | None:
    row = txn.first(_FIND, trial=trial_id, no=attempt_no)
    return None if row is None else AttemptRow._make(row)


def reached(txn: Txn, *, lease: Lease, limit: int) -> list[ReachedStep]:
    """
    Read the ends and the last steps of a trial's newest `limit` attempts, oldest first.

    The last of these attempts is the lease's attempt, which may not have ended yet.
    """
    rows = txn.all(_REACHED, trial=lease.trial_id, no=lease.attempt, limit=limit)
    return [ReachedStep._make(row) for row in rows]


def since_checkpoint(txn: Txn, *, lease: Lease, limit: int) -> list[HowEnded]:
    """
    Read how the attempts before the lease's attempt ended, newest first.

    At most `limit` attempts are read, and only attempts after the attempt that saved the trial's
    newest checkpoint.
    """
    rows = txn.all(_SINCE_CHECKPOINT, trial=lease.trial_id, no=lease.attempt, limit=limit)
    return [HowEnded._make(row) for row in rows]


def of_trial(txn: Txn, *, trial_id: int) -> list[AttemptDetails]:
    """Read a trial's attempts, oldest first."""
    return [AttemptDetails._make(row) for row in txn.all(_OF_TRIAL, trial=trial_id)]
