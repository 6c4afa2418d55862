"""Make a new trial within the budget and give it to a worker at once."""

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.records import Claim, Study
from studydb.domain.states import State
from studydb.operations.claim import begun, claimed_before, ghost
from studydb.store import at_once, counters, studies


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

    The point is computed from (seed, draw) inside the transaction that takes the draw, so it is the
    same whoever asks, and a draw is never lost.

    Args:
        token: As for `claim`; it names the trial, too.
        again: As for `claim`.
        if_nothing_waits: Leave it if a PENDING trial is there to be claimed.

    Returns:
        None when `num_trials` exist, the searcher has no more points, the study is not RUNNING, or
        `max_concurrent` trials run.
    """
    try:
        with database.begin(durable=False) as txn:  # the first flush makes it so
            counters.move(txn, study_id=study.id, key=token, out_of=None, into=State.RUNNING)
            ticket = studies.draw(txn, study_id=study.id, if_nothing_waits=if_nothing_waits)
            if ticket is None:
                txn.abandon()
                return claimed_before(txn, study, token=token, lease_s=lease_s) if again else None

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
    except Duplicate:
        return ghost(database, study, token=token, lease_s=lease_s)
