"""
Claim, report and finish: one statement each on PostgreSQL, several statements on SQLite.

The main CTE of a report or finish changes the trial's row if the row is as the attempt expects;
later CTEs use the row that the main CTE returns. If the row is not as expected, for example because
a verdict or request is pending, nothing changes, and the report or finish runs again in several
statements. The main CTE of a claim changes the row of the first trial that can be claimed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Chain, Txn
from studydb.db.chain import found, of, of_main
from studydb.db.schema import checkpoint, trial
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.life.decisions import Verdict
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.metrics import Summary
from studydb.domain.records import Batch, Claimant, Lease, QueuePosition, Study
from studydb.store import attempts, claims, counters, leases, results, studies
from studydb.store.claims import LeasedTrial
from studydb.store.trials import status_of_study

_AS_EXPECTED = (
    *leases.FENCE,
    trial.c.flush_no < sa.bindparam("to_flush_no"),
    trial.c.n_results == sa.bindparam("n_before"),
    # The first flush of a later attempt supersedes results, which takes several statements.
    sa.or_(trial.c.attempt == 1, trial.c.flush_no > 0),
    trial.c.verdict.is_(None),
    trial.c.request.is_(None),
    status_of_study(trial.c.study_id) == Status.RUNNING,
)
_TIME = {
    "time_total_s": sa.func.coalesce(leases.SUMMARY_VALUES["time_total_s"], trial.c.time_total_s)
}

_REPORT = Chain(
    sa.update(trial)
    .where(*_AS_EXPECTED)
    .values(
        leases.SUMMARY_VALUES | _TIME | leases.RENEWED | {"flush_no": sa.bindparam("to_flush_no")}
    )
    .returning(trial.c.id),
    stored=results.APPEND,
)

_ended = leases.end_values(State.TERMINATED)
_HAS_NO_SOURCE = trial.c.source_checkpoint_id.is_(None)
"""If this is false, a further statement must release the trial's pin on its source checkpoint."""
_FINISH = Chain(
    sa.update(trial)
    .where(*_AS_EXPECTED, _HAS_NO_SOURCE)
    .values({name: _ended[name] for name in _ended.keys() - {"failures", "losses"}} | _TIME)
    .returning(trial.c.failures, trial.c.losses),
    stored=results.APPEND,
    closed=attempts.END,
    counted=counters.MOVE,
)

_restored_step = (
    sa.select(checkpoint.c.step)
    .where(checkpoint.c.id == of_main(trial.c.checkpoint_id))
    .scalar_subquery()
)
_BEGUN = attempts.inserting(
    trial_id=of_main(trial.c.id),
    attempt=of_main(trial.c.attempt),
    config=attempts.CONFIG,
    restored_id=of_main(trial.c.checkpoint_id),
    start_step=sa.func.coalesce(_restored_step, 0) + 1,
)
_HAS_CONFIG = of("runnable", sa.column("has_config", sa.Boolean))
_FREE_CLAIM = Chain(
    claims.LEASE_RUNNABLE.where(_HAS_CONFIG),
    before={"runnable": claims.FIRST_RUNNABLE},
    begun=_BEGUN,
    counted=counters.MOVE,
)
_LIMITED_CLAIM = Chain(
    claims.LEASE_RUNNABLE.where(found("entered")),
    before={
        "runnable": claims.FIRST_RUNNABLE,
        "entered": studies.ENTER.where(_HAS_CONFIG),
    },
    begun=_BEGUN,
    counted=counters.MOVE,
)
"""
A claim in a study with `max_concurrent` also counts the trial in the study's row. The claim locks
the trial's row first, then the study's row. If there is no room, the trial stays PENDING.
"""


class Completed(NamedTuple):
    """How often a completed trial had failed, and how often it had been lost."""

    failures: int
    losses: int


def claim(
    txn: Txn,
    claimant: Claimant,
    *,
    study: Study,
    after_position: QueuePosition,
    resource_class: str = "",
) -> LeasedTrial | None:
    """
    Give the first runnable trial (PENDING and ready) of a study to a worker; start an attempt.

    Args:
        after_position: The trial must come after this position.
        resource_class: The trial's class; "" is the class of trials that have no request.

    Returns:
        The trial's row, RUNNING under a new attempt. None if no trial is runnable, other
        transactions have locked all runnable trials, the study is not RUNNING, `max_concurrent`
        trials run, or the first runnable trial has no config (see `claims.add_config`).

    Raises:
        Duplicate: The same claim was already stored (its reply was lost).
    """
    row = txn.chain(
        _FREE_CLAIM if study.max_concurrent is None else _LIMITED_CLAIM,
        (),
        study=study.id,
        study_id=study.id,
        worker_id=claimant.worker_id,
        token=claimant.token,
        **claims.claim_binds(claimant, after_position, resource_class),
        **counters.binds(key=claimant.token, out_of=State.PENDING, into=State.RUNNING),
    )
    return None if row is None else LeasedTrial._make(row)


def report(txn: Txn, *, lease: Lease, batch: Batch, summary: Summary) -> bool:
    """
    Store a batch of results, and renew the lease.

    Args:
        summary: The trial's summary after the batch.

    Returns:
        False if nothing was stored, because the trial's row is not as expected: for example, the
        lease is lost, a verdict or a request is pending, or the study is not RUNNING.
    """
    row = txn.chain(
        _REPORT,
        results.as_rows(batch.results),
        **_flush_binds(lease, batch, summary),
    )
    return row is not None


def finish(
    txn: Txn,
    *,
    lease: Lease,
    batch: Batch,
    summary: Summary,
    metric_summary: Mapping[str, Any] | None,
    verdict: Verdict | None,
    process: AttemptProcess | None,
) -> Completed | None:
    """
    Store an attempt's last batch and complete its trial, in a study without `max_concurrent`.

    Args:
        summary: The trial's summary after the batch.
        verdict: The verdict for the attempt's row: `TRIAL_IS_DONE` if the last result was reported
            with `done=True`, else None.

    Returns:
        None if nothing was stored, for a reason that makes `report` return False, or because the
        trial began from another trial's checkpoint.
    """
    row = txn.chain(
        _FINISH,
        results.as_rows(batch.results),
        study=lease.study_id,
        to_rank_score=summary.rank_score,
        to_metrics=metric_summary,
        **_flush_binds(lease, batch, summary)
        | attempts.end_binds(
            lease=lease,
            flush_no=batch.flush_no,
            reason=Reason.COMPLETED,
            verdict=verdict,
            process=process,
        )
        | counters.binds(key=lease.token, out_of=State.RUNNING, into=State.TERMINATED),
    )
    return None if row is None else Completed._make(row)


def _flush_binds(lease: Lease, batch: Batch, summary: Summary) -> dict[str, Any]:
    assert batch.before is not None
    time_total_s = batch.results[-1].time_total_s if batch.results else None
    return {
        **leases.fence_binds(lease),
        **leases.summary_binds(summary, time_total_s),
        "study_id": lease.study_id,
        "trial_id": lease.trial_id,
        "attempt": lease.attempt,
        "to_flush_no": batch.flush_no,
        "n_before": batch.before.n_results,
    }
