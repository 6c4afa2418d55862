"""Make a new trial within the budget and give it to a worker."""

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from studydb.db import Database
from studydb.db.faults import Duplicate, DuplicateParams, LockTimeout
from studydb.domain.errors import StorageTransient
from studydb.domain.records import Claim, Claimant, Study
from studydb.operations.claim import claim_from_row, find_earlier_send
from studydb.operations.propose import propose_ahead, propose_next
from studydb.operations.spending import stop_if_too_old
from studydb.store import proposals
from studydb.store.claims import LeasedTrial

NO_QUEUE_S = 30.0
"""If an ask's wait in the queue times out, this process skips the queue for this many seconds."""


def ask(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    again: bool = True,
    if_nothing_waits: bool = False,
    fits: Sequence[str] | None = None,
    must_fit: bool = False,
    by_model: Callable[[bool], bool] | None = None,
) -> Claim | None:
    """
    Make a trial from the searcher's next draw, and start its first attempt.

    If the next draw's proposal is not stored yet, it is computed and stored, and the ask is sent
    again. A draw is skipped only if a trial has the same params, and the params of both must be
    unique. The trial's uuid is the claimant's token.

    Args:
        again: Whether the token may have been sent before; see `claim`.
        if_nothing_waits: Whether to make no trial if a PENDING trial can be claimed.
        fits: The resource classes whose trials the worker can start; None in a study whose trials
            ask for nothing. If `must_fit` is False, these must include "", the class of new trials.
        must_fit: Whether the proposal must be of one of the classes `fits`; True only in a study
            with a resource function.
        by_model: Called with `if_nothing_waits` before each ask; gets proposals from the searcher's
            model, and tells whether the next draw has a proposal. Without this call, hundreds of
            asks would queue for a proposal that is missing. None if the searcher has no model:
            proposals are then computed by index.

    Returns:
        None if `num_trials` trials exist, the searcher has no more draws, the study is not
        RUNNING, `max_concurrent` trials run, `by_model` returned False, or the resource function
        has not decided. With `if_nothing_waits`, also None if a PENDING trial can be claimed. With
        `must_fit`, also None if the next draw's proposal does not fit; see `leave_draw`. Also None
        if an earlier send has started an attempt that has ended since.
    """
    stop_if_too_old(database, study)
    row = None
    while row is None:
        if by_model is not None and not by_model(if_nothing_waits):
            break
        try:
            row = _ask_in_turn(
                database,
                study,
                claimant,
                if_nothing_waits=if_nothing_waits,
                fits=fits,
                must_fit=must_fit,
            )
        except Duplicate as refused:
            earlier = find_earlier_send(database, study, claimant)
            if earlier is not None or not isinstance(refused, DuplicateParams):
                return earlier
            skip_duplicate(database, study)
            continue
        if row is None and must_fit and _is_proposed(database, study):
            break
        is_by_index = row is None and by_model is None
        if is_by_index and not propose_next(
            database, study, if_nothing_waits=if_nothing_waits, fits=fits
        ):
            break
    if row is None:
        return find_earlier_send(database, study, claimant) if again else None
    assert row.draw is not None  # the row was made from a draw
    if by_model is None:
        _propose_ahead(database, study, taken=row.draw)
    return claim_from_row(study, row, claimant)


def _ask_in_turn(
    database: Database,
    study: Study,
    claimant: Claimant,
    *,
    if_nothing_waits: bool,
    fits: Sequence[str] | None,
    must_fit: bool,
) -> LeasedTrial | None:
    """
    Wait for a turn in the queue of asks, then ask.

    The queue is an advisory lock, which every login of the database can take and keep. So an ask
    whose wait times out skips the queue. Without the queue, the study's row still guards the
    budget, and the token still keeps a trial from being made twice.
    """
    queue = monotonic() >= database.no_queue_until_s
    send = partial(
        proposals.ask,
        claimant=claimant,
        study_id=study.id,
        if_nothing_waits=if_nothing_waits,
        fits=fits,
        must_fit=must_fit,
    )
    try:
        with database.begin(durable=False, single=True) as txn:  # the first flush makes it durable
            return send(txn, queue=queue)
    except LockTimeout:
        if not queue:
            raise
    database.no_queue_until_s = monotonic() + NO_QUEUE_S
    with database.begin(durable=False, single=True) as txn:
        return send(txn, queue=False)


def _is_proposed(database: Database, study: Study) -> bool:
    with database.begin(write=False) as txn:
        following = proposals.next_of(txn, study_id=study.id, if_nothing_waits=False)
    return following is not None and following.is_proposed


def _propose_ahead(database: Database, study: Study, *, taken: int) -> None:
    try:
        propose_ahead(database, study, taken=taken)
    except StorageTransient:
        raise  # the caller sends the ask again, and gets the trial that was made
    except Exception:  # noqa: BLE001  the trial exists; a later ask raises the error
        return


def skip_duplicate(database: Database, study: Study) -> None:
    """Skip the next draw if a trial has its params, and the params of both must be unique."""
    with database.begin(durable=False, single=True) as txn:
        proposals.skip_duplicate(txn, study_id=study.id)
