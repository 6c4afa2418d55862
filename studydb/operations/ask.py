"""Make a new trial within the budget and give it to a worker."""

from time import monotonic

from studydb.db import Database
from studydb.db.faults import Duplicate, LockTimeout
from studydb.domain.records import Claim, Claimant, Proposal, Study
from studydb.operations.claim import claim_from_row, find_earlier_send
from studydb.store import proposals, single_statement
from studydb.store.proposals import Asked

NO_QUEUE_S = 30.0
"""For how many seconds the asks of this process skip the queue after a wait that timed out."""


def ask(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    again: bool = True,
    if_nothing_waits: bool = False,
) -> Claim | None:
    """
    Make a trial from the searcher's next draw, and start its first attempt.

    The trial's params are a function of (seed, draw), the same in every process. No draw is
    skipped. The trial's uuid is the claimant's token.

    Args:
        again: Whether the token may have been sent before; see `claim`.
        if_nothing_waits: Whether to make no trial if a PENDING trial can be claimed.

    Returns:
        None if `num_trials` trials exist, the searcher has no more draws, the study is not
        RUNNING, or `max_concurrent` trials run.
    """
    is_kept = database.features.writing_ctes and proposals.are_kept(study)
    try:
        claimed = (_ask_in_single_statement if is_kept else _ask_in_steps)(
            database, study, claimant, if_nothing_waits=if_nothing_waits
        )
    except Duplicate:
        return find_earlier_send(database, study, claimant)
    if claimed is None and again:
        return find_earlier_send(database, study, claimant)
    return claimed


def _ask_in_single_statement(
    database: Database, study: Study, claimant: Claimant, *, if_nothing_waits: bool
) -> Claim | None:
    """Ask in a single statement; if the next proposal is not stored yet, store it and ask again."""
    asked = None
    while asked is None:
        asked = _ask_in_turn(database, study, claimant, if_nothing_waits=if_nothing_waits)
        if asked is None and not _propose_next(database, study, if_nothing_waits=if_nothing_waits):
            return None
    batch, place = divmod(asked.draw, proposals.PROPOSALS_PER_BATCH)
    if place == 0:
        _propose(database, study, batch=batch + proposals.BATCHES_AHEAD, current=batch)
    return claim_from_row(study, asked.leased, claimant)


def _ask_in_turn(
    database: Database, study: Study, claimant: Claimant, *, if_nothing_waits: bool
) -> Asked | None:
    """
    Wait for a turn in the queue of asks, then ask.

    The queue is an advisory lock, which every login of the database can take and keep. So an ask
    whose wait times out skips the queue. Without the queue, the study's row still guards the
    budget, and the token still keeps a trial from being made twice.
    """
    queue = monotonic() >= database.no_queue_until_s
    try:
        with database.begin(durable=False, single=True) as txn:  # a flush makes the ask durable
            return proposals.ask(
                txn, claimant, study=study, if_nothing_waits=if_nothing_waits, queue=queue
            )
    except LockTimeout:
        if not queue:
            raise
    database.no_queue_until_s = monotonic() + NO_QUEUE_S
    with database.begin(durable=False, single=True) as txn:
        return proposals.ask(
            txn, claimant, study=study, if_nothing_waits=if_nothing_waits, queue=False
        )


def _propose_next(database: Database, study: Study, *, if_nothing_waits: bool) -> bool:
    """Store the next draw's proposal unless it is stored; False if there is no next draw."""
    with database.begin(write=False) as txn:
        following = proposals.next_of(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
    if following is None:
        return False
    if not following.is_proposed:  # otherwise another worker has just proposed it
        batch = following.draw // proposals.PROPOSALS_PER_BATCH
        _propose(database, study, batch=batch, current=batch)
    return True


def _propose(database: Database, study: Study, *, batch: int, current: int) -> None:
    end = (batch + 1) * proposals.PROPOSALS_PER_BATCH
    if study.num_draws is not None:
        end = min(end, study.num_draws)
    draws = range(batch * proposals.PROPOSALS_PER_BATCH, end)
    proposed = [_proposal(study, draw) for draw in draws]
    if proposed:
        with database.begin(durable=False, single=True) as txn:
            proposals.propose(
                txn, study_id=study.id, batch=batch, proposed=proposed, current=current
            )


def _ask_in_steps(
    database: Database, study: Study, claimant: Claimant, *, if_nothing_waits: bool
) -> Claim | None:
    with database.begin(durable=False) as txn:  # a flush makes the ask durable
        draw = proposals.take(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
        if draw is None:
            txn.abandon()
            return None

        proposal = _proposal(study, draw.draw)

        leased = single_statement.begin(txn, claimant, study=study, draw=draw, proposal=proposal)
    return claim_from_row(study, leased(), claimant)


def _proposal(study: Study, draw: int) -> Proposal:
    searcher = study.searcher
    assert searcher is not None  # a study without a searcher has no draws
    return Proposal(
        params=searcher.propose(study.space, seed=study.seed, draw=draw),
        origin=searcher.origin,
        bracket=study.scheduler.bracket_of(seed=study.seed, draw=draw),
    )
