"""
Leases: the fence, renewals, and what a flush or an attempt's end writes to a held trial.

The condition `FENCE` is: the trial is RUNNING under this attempt's number and token. Every write of
an attempt has this condition, or is in a transaction that calls `hold`, which locks the trial's row
under this condition. There are three exceptions. `renew` does not compare the number, because a
token belongs to one attempt. `attempts.set_devices` compares only the token, and writes only to the
row of an attempt that has not ended. `checkpoints.delete_rows` deletes only rows of removed
checkpoints.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from studydb.db import Chain, Prepared, Txn
from studydb.db.dialect import after, is_listed, now
from studydb.db.schema import BY_ID, is_still, trial
from studydb.domain.life.decisions import DecidedBy, Verdict
from studydb.domain.life.ending import INVALIDATE, Ending
from studydb.domain.life.states import State, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Lease
from studydb.store import results, workers
from studydb.store.trials import (
    SUMMARY,
    is_stopped_at_once,
    may_become,
    status_for_running_trials,
    summary_of,
    verdict_binds,
    verdict_of,
)

FENCE = (
    trial.c.id == sa.bindparam("trial"),
    trial.c.attempt == sa.bindparam("held_attempt"),
    trial.c.token == sa.bindparam("held_token"),
    is_still(State.RUNNING),
)

HELD = (
    *SUMMARY,
    trial.c.flush_no,
    trial.c.failures,
    trial.c.losses,
    trial.c.request,
    trial.c.invalidated_at,
    trial.c.verdict,
    trial.c.verdict_reason,
    trial.c.verdict_by,
    trial.c.checkpoint_id,
    trial.c.checkpoint_step,
    trial.c.source_checkpoint_id,
    trial.c.time_total_s,
    trial.c.worker_id,
    status_for_running_trials(trial.c.study_id).label("status"),
)

HOLD = Prepared(sa.select(*HELD).where(*FENCE).with_for_update(key_share=True, of=trial))

_SUMMARY_BINDS = {f"to_{column.name}": column.name for column in SUMMARY}
_SUMMARY_OF = attrgetter(*_SUMMARY_BINDS.values())
SUMMARY_VALUES: dict[str, Any] = {
    name: sa.bindparam(bind) for bind, name in _SUMMARY_BINDS.items()
} | {"time_total_s": sa.bindparam("to_time_total_s")}
RENEWED = {"lease_expires_at": after(now(), trial.c.lease_s), "suspect_at": None}
_VERDICT_VALUES: dict[str, Any] = {
    name: sa.bindparam(f"to_{name}") for name in ("verdict", "verdict_reason", "verdict_by")
}

_RECORD = Chain(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(SUMMARY_VALUES | RENEWED | _VERDICT_VALUES | {"flush_no": sa.bindparam("to_flush_no")})
    .returning(trial.c.id),
    stored=results.APPEND,
)


_RANK_SCORE = sa.cast(sa.bindparam("to_rank_score"), sa.Double)

_ENDS_WITH_LEASE = (
    "token",
    "worker_id",
    "lease_s",
    "lease_expires_at",
    "suspect_at",
    "request",
    "request_now",
    "verdict",
    "verdict_reason",
    "verdict_by",
)


def end_values(target: State) -> dict[str, Any]:
    """Return the values that an attempt's end writes to its trial's row."""
    final = target in (State.TERMINATED, State.ERROR)
    back_off = sa.bindparam("delay_s", 0.0, sa.Double)
    pending = target is State.PENDING
    return (
        SUMMARY_VALUES
        | {
            "state": target,
            "rank_score": sa.case((trial.c.invalidated_at.is_(None), _RANK_SCORE)),
            "failures": sa.bindparam("to_failures"),
            "losses": sa.bindparam("to_losses"),
            "ready": back_off <= 0 if pending else False,
            "ready_at": after(now(), back_off) if pending else None,
            "paused_by": sa.bindparam("to_paused_by") if target is State.PAUSED else None,
            "reason": sa.bindparam("to_reason") if final else None,
            "ended_at": now() if final else None,
            "metric_summary": sa.bindparam("to_metrics", None, trial.c.metric_summary.type),
        }
        | dict.fromkeys(_ENDS_WITH_LEASE)
    )


_END: dict[State, Prepared] = {
    target: Prepared(
        sa.update(trial)
        .where(trial.c.id == sa.bindparam("trial"), may_become(target))
        .values(end_values(target))
    )
    for target in State
    if target is not State.RUNNING
}

_OF_LEASES = (is_listed(trial.c.id, "ids"), is_listed(trial.c.token, "tokens"))

_mine = (
    sa.select(trial.c.id)
    .where(*_OF_LEASES, is_still(State.RUNNING))
    .order_by(BY_ID)
    .with_for_update(key_share=True)
    .cte("mine")
    .prefix_with("MATERIALIZED")
)

_REQUESTED = (
    trial.c.token,
    trial.c.request,
    trial.c.invalidated_at,
    trial.c.verdict,
    trial.c.verdict_reason,
    trial.c.verdict_by,
    sa.func.coalesce(trial.c.request_now, is_stopped_at_once(trial.c.study_id)).label(
        "request_now"
    ),
    status_for_running_trials(trial.c.study_id).label("status"),
)

RENEW = Prepared(
    sa.update(trial)
    .where(trial.c.id.in_(sa.select(_mine.c.id)))
    .values(RENEWED)
    .returning(*_REQUESTED)
)

_REQUESTS = Prepared(
    sa.select(*_REQUESTED, workers.REQUEST.label("worker_request")).where(*_OF_LEASES)
)

_SET_VERDICT = Prepared(
    sa.update(trial)
    .where(
        *FENCE,
        sa.or_(
            trial.c.verdict.is_(None),
            trial.c.verdict_by == DecidedBy.PERSON,
            trial.c.verdict_by == DecidedBy.STUDY,
        ),
    )
    .values(_VERDICT_VALUES)
    .returning(trial.c.id)
)


class Held(Struct, frozen=True):
    """The locked row of a held trial; for `status` see `RequestedTrial`."""

    summary: Summary
    flush_no: int
    failures: int
    losses: int
    verdict: Verdict | None
    request: str | None
    status: Status
    checkpoint_id: int | None
    checkpoint_step: int
    source_checkpoint_id: int | None
    time_total_s: float | None
    worker_id: int | None

    @property
    def refuses_results(self) -> bool:
        """Whether results after the stored verdict are dropped; False without a verdict."""
        return self.verdict is not None and self.verdict.refuses_results

    @property
    def is_invalidated(self) -> bool:
        """Whether a person has invalidated the trial, so that its results enter no rung."""
        return self.request == INVALIDATE


class RequestedTrial(Struct, frozen=True):
    """
    A trial whose lease is held, and what people request of it.

    Attributes:
        status: The status that the study's RUNNING trials obey; see `STATUS_FOR_RUNNING_TRIALS`.
        request_now: Whether a request to stop is carried out without the worker's grace.
    """

    token: str
    verdict: Verdict | None
    request: str | None
    status: Status
    request_now: bool


def hold(txn: Txn, *, lease: Lease) -> Held | None:
    """Lock the trial if this attempt still holds it; else return None."""
    row = txn.first(HOLD, **fence_binds(lease))
    return None if row is None else read_held(row)


def read_held(row: Any) -> Held:
    """Make a `Held` from a row of the columns `HELD`."""
    return Held(
        summary=summary_of(row),
        flush_no=row.flush_no,
        failures=row.failures,
        losses=row.losses,
        verdict=verdict_of(row),
        request=_request_of(row),
        status=Status(row.status),
        checkpoint_id=row.checkpoint_id,
        checkpoint_step=row.checkpoint_step,
        source_checkpoint_id=row.source_checkpoint_id,
        time_total_s=row.time_total_s,
        worker_id=row.worker_id,
    )


def _request_of(row: Any) -> str | None:
    """Return what people ask of a RUNNING trial; an invalidated trial is asked to stop."""
    # A CASE in the statement would be wrong on SQLite: the index `trial_invalidated` has the
    # condition `invalidated_at IS NOT NULL`, and SQLite takes this condition for true in RETURNING.
    return INVALIDATE if row.invalidated_at is not None else row.request


def record(
    txn: Txn,
    *,
    lease: Lease,
    stored: Sequence[Result],
    flush_no: int,
    summary: Summary,
    time_total_s: float | None,
    verdict: Verdict | None,
) -> None:
    """Store results of a held trial with its summary and verdict, and renew its lease."""
    txn.run_chain(
        _RECORD,
        results.as_rows(stored),
        study_id=lease.study_id,
        trial_id=lease.trial_id,
        attempt=lease.attempt,
        trial=lease.trial_id,
        to_flush_no=flush_no,
        **summary_binds(summary, time_total_s),
        **verdict_binds(verdict),
    )


def end(
    txn: Txn,
    *,
    trial_id: int,
    ending: Ending,
    summary: Summary,
    time_total_s: float | None,
    metric_summary: Mapping[str, Any] | None = None,
) -> None:
    """Move a held trial to the state of `ending`, and end its lease."""
    params: dict[str, Any] = {
        "trial": trial_id,
        "to_rank_score": summary.rank_score,
        "to_failures": ending.failures,
        "to_losses": ending.losses,
        "to_metrics": metric_summary,
    }
    match ending.state:
        case State.PENDING:
            params["delay_s"] = float(ending.delay_s)
        case State.PAUSED:
            params["to_paused_by"] = ending.paused_by
        case _:
            params["to_reason"] = ending.reason
    txn.run(_END[ending.state], **params, **summary_binds(summary, time_total_s))


def fence_binds(lease: Lease) -> dict[str, Any]:
    return {"trial": lease.trial_id, "held_attempt": lease.attempt, "held_token": lease.token}


def summary_binds(summary: Summary, time_total_s: float | None) -> dict[str, Any]:
    """Return the binds of `SUMMARY_VALUES`."""
    values = zip(_SUMMARY_BINDS, _SUMMARY_OF(summary), strict=True)
    return dict(values) | {"to_time_total_s": time_total_s}


def renew(txn: Txn, *, leases: Sequence[Lease]) -> list[RequestedTrial]:
    """
    Renew leases. The rows of their trials are locked by ascending id.

    Returns:
        The trials whose leases were renewed; the trials of lost leases are missing.
    """
    return _requested(txn.all(RENEW, **_lease_binds(leases)))


def requests(
    txn: Txn, *, leases: Sequence[Lease], worker_id: int
) -> tuple[list[RequestedTrial], str | None]:
    """
    Read what people request of trials and of the worker that holds them, without a lock.

    Returns:
        The trials whose leases are not lost; and the request to the worker, or None if there is no
        request or all leases are lost.
    """
    rows = txn.all(_REQUESTS, worker=worker_id, **_lease_binds(leases))
    return _requested(rows), rows[0].worker_request if rows else None


def _lease_binds(leases: Sequence[Lease]) -> dict[str, Any]:
    return {
        "ids": [lease.trial_id for lease in leases],
        "tokens": [lease.token for lease in leases],
    }


def _requested(rows: Sequence[Any]) -> list[RequestedTrial]:
    return [
        RequestedTrial(
            row.token, verdict_of(row), _request_of(row), Status(row.status), bool(row.request_now)
        )
        for row in rows
    ]


def set_verdict(txn: Txn, *, lease: Lease, verdict: Verdict | None) -> bool:
    """
    Store the verdict that a renewal has found; None clears the stored verdict.

    Returns:
        False if the lease is lost, or the row keeps a stored verdict that refuses results.
    """
    return txn.count(_SET_VERDICT, **fence_binds(lease), **verdict_binds(verdict)) == 1
