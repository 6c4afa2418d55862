"""Give a runnable trial to a worker."""

from contextlib import suppress
from functools import partial

from msgspec import structs

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate, LockTimeout
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.records import QUEUE_START, Claim, Claimant, Lease, QueuePosition, Study
from studydb.domain.seeds import trial_seed
from studydb.operations.spending import stop_if_too_old
from studydb.store import (
    attempts,
    checkpoints,
    claims,
    proposals,
    single_statement,
    studies,
    tags,
)
from studydb.store.claims import LeasedTrial

MOST_CONFIGS = 100
"""The most trials to which one claim adds configs."""


def claim(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    again: bool = True,
    after_position: QueuePosition = QUEUE_START,
) -> Claim | None:
    """
    Claim a study's first PENDING trial, leaving out trials with their own requests for resources.

    Args:
        again: Whether the token may have been sent before, and may already have claimed a trial.
        after_position: The position in the queue after which the scan starts. If no runnable
            trial follows, the whole queue is scanned.

    Returns:
        None if no such trial is runnable, the study is not RUNNING, or `max_concurrent` trials run.
        Also None if an earlier send has started an attempt that has ended since.
    """
    try_claim = partial(claim_once, database, study, claimant)
    stop_if_too_old(database, study)
    try:
        claimed = None
        for position in dict.fromkeys((after_position, QUEUE_START)):
            claimed = claimed or try_claim(after_position=position)
        if claimed is None and add_configs(database, study):
            claimed = try_claim(after_position=QUEUE_START)
        if claimed is None and again:
            claimed = wait_for_earlier_send(database, study, claimant)
            # A trial that an earlier send had locked is free again if that send has failed.
            claimed = claimed or try_claim(after_position=QUEUE_START)
    except Duplicate:
        return find_earlier_send(database, study, claimant)
    return claimed


def claim_once(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    after_position: QueuePosition,
    resource_class: str = "",
) -> Claim | None:
    """
    Claim the first trial of a resource class after a position of the queue.

    Raises:
        Duplicate: The token was sent before, and has claimed a trial.
    """
    with database.begin(durable=False, single=True) as txn:  # the first flush makes it durable
        row = single_statement.claim(
            txn, claimant, study=study, after_position=after_position, resource_class=resource_class
        )
    if row is None:
        return None
    if row.checkpoint_id is None and not row.has_tags:
        return claim_from_row(study, row, claimant)
    with database.begin(write=False) as txn:
        return _claim_with_more(txn, study, row, claimant, checkpoint_id=row.checkpoint_id)


def _claim_with_more(
    txn: Txn, study: Study, row: LeasedTrial, claimant: Claimant, *, checkpoint_id: int | None
) -> Claim:
    """Build the `Claim` of a trial with its tags and the checkpoint to restore, if it has these."""
    return claim_from_row(
        study,
        row,
        claimant,
        newest=checkpoints.find(txn, checkpoint_id=checkpoint_id) if checkpoint_id else None,
        own_tags=tags.of_trial(txn, trial_id=row.id) if row.has_tags else (),
    )


def add_configs(database: Database, study: Study, *, resource_class: str = "") -> bool:
    """
    Add configs to the first PENDING trials of a resource class, if they have none.

    Earlier versions of studydb stored no configs, and a claim gives out no trial without a config.

    Returns:
        Whether there were such trials.
    """
    with database.begin(write=False) as txn:
        lacking = claims.without_config(
            txn, study_id=study.id, resource_class=resource_class, limit=MOST_CONFIGS
        )
    if lacking:
        with database.begin(durable=False) as txn:
            for trial_id, params in lacking:
                fits = study.space.misfit(params) is None
                config = study.space.config(params) if fits else {}
                claims.add_config(txn, trial_id=trial_id, config=config)
    return bool(lacking)


def wait_for_earlier_send(database: Database, study: Study, claimant: Claimant) -> Claim | None:
    """
    Wait until an earlier send of the request has committed or failed, and find its trial.

    The earlier send may be in the queue of asks, or hold a lock on the study's row or on a trial.
    """
    with suppress(LockTimeout), database.begin(write=False, single=True) as txn:
        proposals.await_asks(txn, study_id=study.id)
    with database.begin() as txn:
        txn.abandon()  # nothing will be written; locks are taken to wait for the earlier send
        claims.await_claims(txn, study_id=study.id)
        studies.lock(txn, study_id=study.id)
        return _read_earlier_send(txn, study, claimant)


def claim_from_row(
    study: Study,
    row: LeasedTrial,
    claimant: Claimant,
    *,
    newest: Checkpoint | None = None,
    own_tags: tuple[str, ...] = (),
) -> Claim:
    """
    Build the `Claim` from the row of a leased trial.

    Args:
        newest: The checkpoint that the attempt restores.
        own_tags: The trial's tags.
    """
    config, misfit = study.space.check_row(row.params, row.config)
    return Claim(
        lease=Lease(
            study.id,
            row.id,
            row.number,
            row.bracket,
            row.attempt,
            claimant.token,
            claimant.lease_s,
            claimant.worker_id,
        ),
        uuid=row.uuid,
        params=study.space.restore_floats(row.params),
        config=config,
        seed=trial_seed(study.seed, row.number),
        checkpoint=newest,
        next_decision_step=study.scheduler.next_decision_step(
            row.bracket, newest.step if newest else 0
        ),
        time_total_s=row.time_total_s or 0.0,
        queue_position=QueuePosition(row.priority, row.number),
        misfit=misfit,
        name=row.name,
        tags=own_tags,
        resource_class=row.resource_class,
    )


def find_earlier_send(database: Database, study: Study, claimant: Claimant) -> Claim | None:
    """Find the claim that an earlier send of the request made, unless its attempt has ended."""
    with database.begin(write=False) as txn:
        return _read_earlier_send(txn, study, claimant)


def _read_earlier_send(txn: Txn, study: Study, claimant: Claimant) -> Claim | None:
    """Read the claim that was made with the claimant's token, unless its attempt has ended."""
    made = attempts.by_token(txn, token=claimant.token)
    if made is None or made.ended_at is not None:
        return None
    row = claims.leased(txn, trial_id=made.trial_id)._replace(config=made.config)
    holder = structs.replace(claimant, worker_id=made.worker_id or 0)
    return _claim_with_more(txn, study, row, holder, checkpoint_id=made.restored_id)
