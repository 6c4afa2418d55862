"""Give a runnable trial to a worker."""

from typing import Any

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.records import Claim, Lease, Study
from studydb.domain.seeds import trial_seed
from studydb.domain.states import State
from studydb.store import attempts, checkpoints, counters, leases, studies


def claim(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    again: bool = True,
) -> Claim | None:
    """
    Claim the first PENDING trial of a study.

    Args:
        token: Random, used for one claim only. After a lost reply, send the same token until an
            answer comes: it gets the trial that the lost reply named.
        again: Whether the token may have been sent before; False saves a look.

    Returns:
        None when nothing is runnable, the study is not RUNNING, or `max_concurrent` trials run.
    """
    try:
        with database.begin(durable=False) as txn:  # the first flush makes it so
            row = leases.claim(
                txn, study_id=study.id, worker_id=worker_id, token=token, lease_s=lease_s
            )
            if row is None:
                txn.abandon()
                if not again:
                    return None
                leases.await_claims(txn, study_id=study.id)  # a ghost in flight holds its trial,
                counters.lock(txn, study_id=study.id, key=worker_id)  # one of an ask its shard
                return claimed_before(txn, study, token=token, lease_s=lease_s)

            claimed = begin_attempt(
                txn, study, row, worker_id=worker_id, token=token, lease_s=lease_s
            )

            counters.move(
                txn, study_id=study.id, key=worker_id, out_of=State.PENDING, into=State.RUNNING
            )
            if study.max_concurrent is not None and not studies.enter(txn, study_id=study.id):
                txn.abandon()
                return None
        return claimed
    except Duplicate:
        return ghost(database, study, token=token, lease_s=lease_s)


def begin_attempt(
    txn: Txn, study: Study, row: Any, *, worker_id: int, token: str, lease_s: float
) -> Claim:
    """
    Open the attempt of a trial that this transaction has just leased.

    Raises:
        Duplicate: The token was used by an earlier send.
    """
    lease = Lease(study.id, row.id, row.number, row.bracket, row.attempt, token, lease_s)
    newest = (
        None
        if row.checkpoint_id is None
        else checkpoints.find(txn, checkpoint_id=row.checkpoint_id)
    )
    config = study.space.config(row.params)
    start_step = (newest.step if newest else 0) + 1
    attempts.insert(
        txn,
        lease=lease,
        worker_id=worker_id,
        config=config,
        restored_id=row.checkpoint_id,
        start_step=start_step,
    )
    return Claim(
        lease=lease,
        uuid=row.uuid,
        params=row.params,
        config=config,
        seed=trial_seed(study.seed, row.number),
        checkpoint=newest,
        next_decision_step=study.scheduler.next_decision_step(start_step - 1),
        time_total_s=row.time_total_s or 0.0,
    )


def ghost(database: Database, study: Study, *, token: str, lease_s: float) -> Claim | None:
    """Read the claim or ask that committed although its reply was lost."""
    with database.begin(write=False) as txn:
        return claimed_before(txn, study, token=token, lease_s=lease_s)


def claimed_before(txn: Txn, study: Study, *, token: str, lease_s: float) -> Claim | None:
    """The claim that an earlier send with this token made; None if none, or if it has ended."""
    made = attempts.by_token(txn, token=token)
    if made is None or made.ended_at is not None:
        return None
    row = leases.leased(txn, trial_id=made.trial_id)
    newest = (
        None if made.restored_id is None else checkpoints.find(txn, checkpoint_id=made.restored_id)
    )
    return Claim(
        lease=Lease(study.id, row.id, row.number, row.bracket, made.attempt, token, lease_s),
        uuid=row.uuid,
        params=row.params,
        config=made.config,
        seed=trial_seed(study.seed, row.number),
        checkpoint=newest,
        next_decision_step=study.scheduler.next_decision_step(newest.step if newest else 0),
        time_total_s=row.time_total_s or 0.0,
    )
