"""Compute proposals ahead of their asks, outside of any transaction, and store them."""

from collections.abc import Iterable

from studydb.db import Database
from studydb.domain.records import Proposal, Study
from studydb.store import proposals

BLOCK = 64
"""The number of consecutive draws whose proposals are stored together."""

BLOCKS_AHEAD = 8
"""
How many blocks after the current block are stored ahead. An ask that waits for the study's row sees
the proposals that were stored when it began. So more draws must be stored ahead than clients wait.
"""


def propose_next(database: Database, study: Study, *, if_nothing_waits: bool) -> bool:
    """
    Store the next draw's proposal unless it is stored.

    Returns:
        False if there is no next draw; see `proposals.next_of`.
    """
    with database.begin(write=False) as txn:
        following = proposals.next_of(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
    if following is None:
        return False
    if not following.is_proposed:  # otherwise another worker has just stored it
        first = following.draw // BLOCK * BLOCK
        propose_by_index(database, study, draws=range(following.draw, first + BLOCK))
    return True


def propose_ahead(database: Database, study: Study, *, taken: int) -> None:
    """
    Store the blocks that are due once the first draw of a block is taken.

    The first block makes two blocks due, later blocks two or one, up to `BLOCKS_AHEAD`. Draws from
    `num_trials` on are left out.

    Args:
        taken: The draw that the caller has taken.
    """
    block, place = divmod(taken, BLOCK)
    if place != 0:
        return
    due = range((_last_due(block - 1) + 1) * BLOCK, (_last_due(block) + 1) * BLOCK)
    if study.num_trials is not None:
        due = range(due.start, min(due.stop, study.num_trials))
    propose_by_index(database, study, draws=due)


def _last_due(block: int) -> int:
    return min(2 * block + 2, block + BLOCKS_AHEAD)


def propose_by_index(database: Database, study: Study, *, draws: Iterable[int]) -> None:
    """Compute and store the proposals of draws; draws that the searcher lacks are left out."""
    end = study.num_draws
    proposed = {draw: proposal_of(study, draw) for draw in draws if end is None or draw < end}
    if proposed:
        with database.begin(durable=False) as txn:  # a lost proposal is computed again
            proposals.store(txn, study_id=study.id, proposed=proposed)


def proposal_of(study: Study, draw: int) -> Proposal:
    """Compute the proposal of a draw; it is the same in every process."""
    searcher = study.searcher
    assert searcher is not None  # a study without a searcher has no draws
    params = searcher.propose(study.space, seed=study.seed, draw=draw)
    return Proposal(
        params=params,
        config=study.space.config(params),
        origin=searcher.origin,
        bracket=study.scheduler.bracket_of(seed=study.seed, draw=draw),
        space_version=study.space_version,
        is_unique=searcher.wants_unique,
    )
