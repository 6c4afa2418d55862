"""Give a runnable trial to a worker."""

from contextlib import suppress
from functools import partial
from typing import Any

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate, LockTimeout
from studydb.domain.life.states import State
from studydb.domain.records import Checkpoint, Claim, Lease, Study
from studydb.domain.seeds import trial_seed
from studydb.store import at_once, attempts, checkpoints, counters, leases, proposals, studies


def claim(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    again: bool = True,
    beyond: tuple[int, int] = leases.HEAD,
) -> Claim | None:
    """
    Claim the first PENDING trial of a study.

    Args:
        token: Random, used for one claim only. After a lost reply, send the same token until an
            answer comes: it gets the trial that the lost reply named.
        again: Whether the token may have been sent before; False saves a look.
        beyond: Priority and number of a trial: those that follow it come first.

    Returns:
        None when nothing is runnable, the study is not RUNNING, or `max_concurrent` trials run.
    """
    attempt_claim = partial(
        _claim_at_once if _is_plain(database, study) else _claim_in_steps,
        database,
        study,
        worker_id=worker_id,
        token=token,
        lease_s=lease_s,
    )
    try:
        claimed = None
        for place in dict.fromkeys((beyond, leases.HEAD)):
            claimed = claimed or attempt_claim(beyond=place)
        if claimed is None and again:
            claimed = _late(database, study, token=token, lease_s=lease_s)
            claimed = claimed or attempt_claim(beyond=leases.HEAD)  # what a ghost held that died
    except Duplicate:
        return ghost(database, study, token=token, lease_s=lease_s)
    return claimed


def _is_plain(database: Database, study: Study) -> bool:
    is_single = database.features.writing_ctes
    return is_single and study.max_concurrent is None and study.space.is_flat


def _claim_at_once(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    beyond: tuple[int, int],
) -> Claim | None:
    """The claim where no limit is to be counted, and SQL can make the config."""
    with database.begin(durable=False, single=True) as txn:  # the first flush makes it so
        row = at_once.claim(
            txn, study=study, worker_id=worker_id, token=token, lease_s=lease_s, beyond=beyond
        )
    if row is None:
        return None
    newest = None
    if row.checkpoint_id is not None:
        with database.begin(write=False) as txn:
            newest = checkpoints.find(txn, checkpoint_id=row.checkpoint_id)
    return begun(study, row, newest=newest, worker_id=worker_id, token=token, lease_s=lease_s)


def _claim_in_steps(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    beyond: tuple[int, int],
) -> Claim | None:
    with database.begin(durable=False) as txn:  # the first flush makes it so
        row = leases.claim(
            txn,
            study_id=study.id,
            worker_id=worker_id,
            token=token,
            lease_s=lease_s,
            beyond=beyond,
        )
        if row is None:
            return None

        claimed = begin_attempt(txn, study, row, worker_id=worker_id, token=token, lease_s=lease_s)

        if study.max_concurrent is not None and not studies.enter(txn, study_id=study.id):
            txn.abandon()
            return None
        counters.move(txn, study_id=study.id, key=token, out_of=State.PENDING, into=State.RUNNING)
    return claimed


def _late(database: Database, study: Study, *, token: str, lease_s: float) -> Claim | None:
    """What an earlier send of this claim got, once it can be seen."""
    # An earlier ask stands in the queue, or holds the study's row; an earlier claim its trial.
    with suppress(LockTimeout), database.begin(write=False, single=True) as txn:
        proposals.await_asks(txn, study_id=study.id)
    with database.begin() as txn:
        txn.abandon()
        leases.await_claims(txn, study_id=study.id)
        studies.lock(txn, study_id=study.id)
        return claimed_before(txn, study, token=token, lease_s=lease_s)


def begin_attempt(
    txn: Txn, study: Study, row: Any, *, worker_id: int, token: str, lease_s: float
) -> Claim:
    """
    Open the attempt of a trial that this transaction has just leased.

    Raises:
        Duplicate: The token was used by an earlier send.
    """
    newest = (
        None
        if row.checkpoint_id is None
        else checkpoints.find(txn, checkpoint_id=row.checkpoint_id)
    )
    claimed = begun(study, row, newest=newest, worker_id=worker_id, token=token, lease_s=lease_s)
    attempts.insert(
        txn,
        lease=claimed.lease,
        config=claimed.config,
        restored_id=row.checkpoint_id,
        start_step=(newest.step if newest else 0) + 1,
    )
    return claimed


def begun(
    study: Study,
    row: Any,
    *,
    newest: Checkpoint | None = None,
    worker_id: int,
    token: str,
    lease_s: float,
) -> Claim:
    """The claim that a row, as `leases.claim` returns it, stands for."""
    misfit = study.space.misfit(row.params)
    return Claim(
        lease=Lease(
            study.id, row.id, row.number, row.bracket, row.attempt, token, lease_s, worker_id
        ),
        uuid=row.uuid,
        params=row.params,
        config=study.space.config(row.params) if misfit is None else {},
        seed=trial_seed(study.seed, row.number),
        checkpoint=newest,
        next_decision_step=study.scheduler.next_decision_step(newest.step if newest else 0),
        time_total_s=row.time_total_s or 0.0,
        place=(row.priority, row.number),
        misfit=misfit,
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
    return begun(
        study,
        row,
        newest=newest,
        worker_id=made.worker_id or 0,
        token=token,
        lease_s=lease_s,
    )
