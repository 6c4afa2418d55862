"""Make a new trial within the budget and give it to a worker at once."""

from time import monotonic
from typing import Any

from studydb.db import Database
from studydb.db.faults import Duplicate, LockTimeout
from studydb.domain.records import Claim, Study
from studydb.operations.claim import begun, ghost
from studydb.store import at_once, proposals

NO_QUEUE_S = 30.0
"""How long the asks of this process go past the queue once a turn has not come."""


def ask(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    again: bool = True,
    if_nothing_waits: bool = False,
) -> Claim | None:
    """
    Make the searcher's next trial, RUNNING under its first attempt.

    Its point is a function of (seed, draw), the same whoever asks, and no draw is lost.

    Args:
        token: As for `claim`; it names the trial, too.
        again: As for `claim`.
        if_nothing_waits: Leave it if a PENDING trial is there to be claimed.

    Returns:
        None when `num_trials` exist, the searcher has no more points, the study is not RUNNING, or
        `max_concurrent` trials run.
    """
    is_kept = database.features.writing_ctes and proposals.are_kept(study)
    try:
        claimed = (_ask_at_once if is_kept else _ask_in_steps)(
            database,
            study,
            worker_id=worker_id,
            token=token,
            lease_s=lease_s,
            if_nothing_waits=if_nothing_waits,
        )
    except Duplicate:
        return ghost(database, study, token=token, lease_s=lease_s)
    if claimed is None and again:
        return ghost(database, study, token=token, lease_s=lease_s)
    return claimed


def _ask_at_once(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    if_nothing_waits: bool,
) -> Claim | None:
    """The ask where the points of the next draws are kept, and SQL can make the config."""
    row = None
    while row is None:
        row = _ask_in_turn(
            database,
            study=study,
            worker_id=worker_id,
            token=token,
            lease_s=lease_s,
            if_nothing_waits=if_nothing_waits,
        )
        if row is None and not _propose_next(database, study, if_nothing_waits=if_nothing_waits):
            return None
    block, place = divmod(row.draw, proposals.BLOCK)
    if place == 0:
        _propose(database, study, block=block + proposals.AHEAD, current=block)
    return begun(study, row, worker_id=worker_id, token=token, lease_s=lease_s)


def _ask_in_turn(database: Database, **options: Any) -> Any | None:
    """
    Ask from the queue; without it, where the turn does not come in time.

    Whoever may connect can hold the queue's lock. The study's row, which takes a right to write,
    is what keeps budgets; the token, what keeps one trial from being made twice.
    """
    queue = monotonic() >= database.no_queue_until_s
    try:
        with database.begin(durable=False, single=True) as txn:  # the first flush makes it so
            return proposals.ask(txn, queue=queue, **options)
    except LockTimeout:
        if not queue:
            raise
    database.no_queue_until_s = monotonic() + NO_QUEUE_S
    with database.begin(durable=False, single=True) as txn:
        return proposals.ask(txn, queue=False, **options)


def _propose_next(database: Database, study: Study, *, if_nothing_waits: bool) -> bool:
    """Whether there is a next draw; its point is known then."""
    with database.begin(write=False) as txn:
        following = proposals.next_of(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
    if following is None:
        return False
    if not following.is_proposed:  # or somebody was faster
        block = following.next_draw // proposals.BLOCK
        _propose(database, study, block=block, current=block)
    return True


def _propose(database: Database, study: Study, *, block: int, current: int) -> None:
    searcher, end = study.searcher, (block + 1) * proposals.BLOCK
    assert searcher is not None  # or the study would have no draws
    if study.num_draws is not None:
        end = min(end, study.num_draws)
    points = [
        searcher.propose(study.space, seed=study.seed, draw=draw)
        for draw in range(block * proposals.BLOCK, end)
    ]
    if points:
        with database.begin(durable=False, single=True) as txn:
            proposals.propose(txn, study_id=study.id, block=block, points=points, current=current)


def _ask_in_steps(
    database: Database,
    study: Study,
    *,
    worker_id: int,
    token: str,
    lease_s: float,
    if_nothing_waits: bool,
) -> Claim | None:
    with database.begin(durable=False) as txn:  # the first flush makes it so
        ticket = proposals.take(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
        if ticket is None:
            txn.abandon()
            return None

        searcher = study.searcher
        assert searcher is not None  # or the study would have no draws
        params = searcher.propose(study.space, seed=study.seed, draw=ticket.draw)

        row_of = at_once.begin(
            txn,
            study=study,
            ticket=ticket,
            params=params,
            origin=searcher.origin,
            worker_id=worker_id,
            token=token,
            lease_s=lease_s,
        )
    return begun(study, row_of(), worker_id=worker_id, token=token, lease_s=lease_s)
