"""Compute proposals ahead of their asks, outside of any transaction, and store them."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from studydb.db import Database
from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.metrics import weigh_value
from studydb.domain.records import Proposal, Study
from studydb.operations.requesting import pause_unrequested, store_proposals, with_requests
from studydb.store import proposals, proposer

BLOCK = 64
"""The number of consecutive draws whose proposals are stored together."""

BLOCKS_AHEAD = 8
"""
The most blocks after the current block that are stored ahead. An ask that waits for the study's row
sees only the proposals that were stored before the ask began. So the number of draws stored ahead
must exceed the number of asks that wait.
"""

MOST_BYTES = 2**20
"""About the most bytes of JSON that one transaction stores; it stores at least one proposal."""

MOST_BYTES_AHEAD = 8 * MOST_BYTES
"""About the most bytes of JSON that are stored ahead."""


def propose_next(
    database: Database,
    study: Study,
    *,
    if_nothing_waits: bool,
    fits: Sequence[str] | None = None,
) -> bool:
    """
    If the next draw has no proposal, store proposals for it and the later draws of its block.

    The next draw can be `num_trials` or more, because draws whose params exist are skipped.

    Returns:
        False if an ask would make no trial (see `proposals.next_of`), if the study's resource
        function was not asked, or if the request of the next draw's trial is unknown or cannot be
        stored. In the last case the study is paused.
    """
    with database.begin(write=False) as txn:
        following = proposals.next_of(
            txn, study_id=study.id, if_nothing_waits=if_nothing_waits, fits=fits
        )
        if following is None:
            return False
        end = proposer.outlook(txn, study_id=study.id).end
    if following.is_proposed:  # another worker has just stored the proposal
        return True
    return _propose_block(database, study, following.draw, end=end)


def _propose_block(database: Database, study: Study, draw: int, *, end: int | None) -> bool:
    due = range(draw, (draw // BLOCK + 1) * BLOCK)
    if end is not None:
        due = range(due.start, max(due.start + 1, min(due.stop, end)))
    try:
        propose_by_index(database, study, draws=due, most_bytes=MOST_BYTES)
    except NotAsked:
        return False
    except DecisionFailed as error:
        pause_unrequested(database, study, error)
        return False
    return True


def propose_ahead(database: Database, study: Study, *, taken: int) -> None:
    """
    Store the proposals that are due once the first draw of a block is taken.

    When block b (from 0) is begun, the blocks up to 2 b + 2 are due, but at most `BLOCKS_AHEAD`
    blocks after b. Draws that the budget does not need are left out. The budget is read each time,
    because `extend` can change it. At most about `MOST_BYTES_AHEAD` are stored ahead.

    Args:
        taken: The draw that the caller has taken. If it is not the first draw of its block, nothing
            is done.
    """
    block, place = divmod(taken, BLOCK)
    if place != 0:
        return
    with database.begin(write=False) as txn:
        ahead = proposer.outlook(txn, study_id=study.id)
    due = range(ahead.draw, (_last_due(block) + 1) * BLOCK)
    if ahead.end is not None:
        due = range(due.start, min(due.stop, ahead.end))
    if not due:
        return
    stored_bytes = (ahead.draw - ahead.next_draw) * _weigh(proposal_of(study, taken))
    if stored_bytes < MOST_BYTES_AHEAD:
        most_bytes = MOST_BYTES_AHEAD - stored_bytes
        propose_by_index(database, study, draws=due, most_bytes=most_bytes)


def _last_due(block: int) -> int:
    return min(2 * block + 2, block + BLOCKS_AHEAD)


def propose_by_index(
    database: Database, study: Study, *, draws: Iterable[int], most_bytes: float = inf
) -> None:
    """
    Compute and store the proposals of draws; draws after the searcher's last draw are left out.

    Args:
        most_bytes: After about this many bytes of JSON, the remaining draws are left out.

    Raises:
        NotAsked: The study's resource function was not asked about the first draw; nothing was
            stored.
        DecisionFailed: The resource function has not said what the trial of the first draw needs,
            or `store_proposals` cannot store that draw; nothing was stored. If a later draw fails,
            the call that begins with that draw raises the error.
    """
    end, is_stored = study.num_draws, False
    computed = ((draw, proposal_of(study, draw)) for draw in draws if end is None or draw < end)
    for proposed in in_parts(with_requests(study, computed), most_bytes=most_bytes):
        try:
            with database.begin(durable=False) as txn:  # proposals undone by a crash are made again
                store_proposals(txn, study, proposed)
        except DecisionFailed:
            if not is_stored:
                raise
            return
        is_stored = True


def in_parts(
    computed: Iterable[tuple[int, Proposal]], *, most_bytes: float = inf
) -> Iterator[dict[int, Proposal]]:
    """Divide proposals into parts of at most about `MOST_BYTES`, one part for each transaction."""
    part: dict[int, Proposal] = {}
    part_bytes = total_bytes = 0
    for draw, one in computed:
        n_bytes = _weigh(one)
        if part and part_bytes + n_bytes > MOST_BYTES:
            yield part
            part, part_bytes = {}, 0
        part[draw] = one
        part_bytes += n_bytes
        total_bytes += n_bytes
        if total_bytes >= most_bytes:
            break
    if part:
        yield part


def _weigh(one: Proposal) -> int:
    n_bytes = weigh_value(one.params)
    return n_bytes + (n_bytes if one.config == one.params else weigh_value(one.config))


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
