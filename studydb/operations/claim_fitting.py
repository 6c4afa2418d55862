"""Give a worker a runnable trial that fits the worker, if the study's trials ask for resources."""

from functools import partial

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.class_queues import ClassQueues
from studydb.domain.records import QUEUE_START, Claim, Claimant, QueuePosition, Study
from studydb.operations.claim import (
    add_configs,
    claim_once,
    find_earlier_send,
    wait_for_earlier_send,
)
from studydb.operations.spending import stop_if_too_old
from studydb.store import resource_classes


def read_queues(
    database: Database,
    study: Study,
    queues: ClassQueues,
    *,
    after_position: QueuePosition = QUEUE_START,
) -> None:
    """Read the first positions of each class's queue into `queues`, without locks."""
    depth = queues.depth
    with database.begin(write=False, single=True) as txn:
        found = resource_classes.queues(
            txn, study_id=study.id, after_position=after_position, depth=depth
        )
    queues.take_in(found, depth=depth)


def claim_fitting(
    database: Database,
    study: Study,
    claimant: Claimant,
    queues: ClassQueues,
    *,
    again: bool = True,
    after_position: QueuePosition = QUEUE_START,
) -> Claim | None:
    """
    Claim the first of the PENDING trials that fit the worker.

    The queues are read without locks, so another worker may have claimed a trial that they show.
    In that case the next trial of the class is claimed, or the next class is tried. If no trial was
    claimed from the known queues, they are read again, and the trials that fit are tried.

    Args:
        again: Whether the token may have been sent before, and may already have claimed a trial.
        after_position: The position after which the queues are read. If no trial after this
            position fits, the queues are read from the start.

    Returns:
        None if no trial that fits is runnable, the study is not RUNNING, or `max_concurrent` trials
        run. Also None if an earlier send has started an attempt that has ended since.
    """
    stop_if_too_old(database, study)
    try:
        claimed = _claim_first(database, study, claimant, queues, after_position)
        if claimed is None and again:
            claimed = wait_for_earlier_send(database, study, claimant)
            claimed = claimed or _claim_first(database, study, claimant, queues, QUEUE_START)
    except Duplicate:
        claimed = find_earlier_send(database, study, claimant)
    if claimed is not None:
        queues.claimed(claimed.resource_class, claimed.queue_position)
    return claimed


def _claim_first(
    database: Database,
    study: Study,
    claimant: Claimant,
    queues: ClassQueues,
    after_position: QueuePosition,
) -> Claim | None:
    if not queues.must_read:
        claimed = _try_classes(database, study, claimant, queues)
        if claimed is not None:
            return claimed
    for position in dict.fromkeys((after_position, QUEUE_START)):
        read_queues(database, study, queues, after_position=position)
        claimed = _try_classes(database, study, claimant, queues)
        if claimed is not None:
            return claimed
    return None


def _try_classes(
    database: Database, study: Study, claimant: Claimant, queues: ClassQueues
) -> Claim | None:
    """Claim from the class whose first trial comes first in the queue, or from the next class."""
    tried: set[str] = set()
    while (chosen := queues.next_claim(tried)) is not None:
        name, (priority, number) = chosen
        try_claim = partial(
            claim_once,
            database,
            study,
            claimant,
            after_position=QueuePosition(priority, number - 1),
            resource_class=name,
        )
        claimed = try_claim()
        if claimed is None and add_configs(database, study, resource_class=name):
            claimed = try_claim()
        if claimed is not None:
            return claimed
        queues.emptied(name)
        tried.add(name)
    return None
