"""
Let one process at a time fit a study's model; store points for new trials as proposals.

A point comes from the model, or is proposed by index.

The model runs between the transactions of this module, in `lease/proposing.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from studydb.db import Database, Txn
from studydb.domain.life.states import Origin
from studydb.domain.records import Process, Proposal, Study
from studydb.domain.resource_function import Answers, answer_for
from studydb.domain.space.search_space import params_hash
from studydb.operations.propose import in_parts
from studydb.operations.requesting import store_proposals
from studydb.store import counters, history, proposer, studies
from studydb.store.proposer import Look, Outlook

LARGEST_BLOCK = 16
"""The most points of one fit."""

RUNNING_PER_POINT = 4
"""A fit gives a point for every four RUNNING trials, so that hundreds of workers need few fits."""

MOST_BY_INDEX = 512
"""
A worker that has waited long enough for a model stores one point by index, unless this many draws,
from the awaited draw on, have proposals by then. With a lower limit, hundreds of workers would
compete for a few draws, and each would look, store and ask repeatedly.
"""

RECENT_TRIALS = 64
"""From how many ended trials the mean time of a trial is computed."""


class Assignment(NamedTuple):
    """
    What the process that has taken the proposer's lease is to propose.

    Attributes:
        draw: The first draw that has no proposal.
        n_points: How many points to propose.
    """

    draw: int
    n_points: int


class Point(NamedTuple):
    """
    A point for a new trial.

    Attributes:
        origin: `Origin.BY_INDEX` if the model has not chosen the point.
        is_unique: Whether the point is dropped if a trial or proposal has the same params.
    """

    params: dict[str, Any]
    origin: Origin
    is_unique: bool = True


def look(
    database: Database,
    study: Study,
    *,
    token: str,
    if_nothing_waits: bool,
    fits: Sequence[str] | None = None,
) -> Look | None:
    """Read the state of the next draw, without a lock; see `store.proposer.look`."""
    with database.begin(write=False) as txn:
        return proposer.look(
            txn, study_id=study.id, token=token, if_nothing_waits=if_nothing_waits, fits=fits
        )


def mean_trial_s(database: Database, study: Study) -> float:
    """Return the mean training time of the study's newest ended trials; 0 if none has a time."""
    with database.begin(write=False) as txn:
        mean_s = history.mean_time_s(txn, study_id=study.id, n_trials=RECENT_TRIALS)
    return mean_s or 0.0


def take_lease(
    database: Database, study: Study, *, token: str, worker_id: int, lease_s: float
) -> Assignment | None:
    """
    Take the proposer's lease of a study.

    Args:
        token: A random text, for one fit only. A duplicate request has the same token, and extends
            the lease.

    Returns:
        None if another process has the lease, the next draw has a proposal, the study is not
        RUNNING, or its budget or its draws are spent.
    """
    # Not durable: if a crash of the database undoes this, a process can take the lease again.
    with database.begin(durable=False) as txn:
        if not proposer.take(
            txn, study_id=study.id, token=token, worker_id=worker_id, lease_s=lease_s
        ):
            txn.abandon()
            return None

        following = proposer.outlook(txn, study_id=study.id)
        running = counters.read(txn, study_id=study.id).running
    n_points = max(1, min(running // RUNNING_PER_POINT, LARGEST_BLOCK))
    return Assignment(following.draw, min(n_points, following.n_left or n_points))


def renew_lease(database: Database, study: Study, *, token: str, lease_s: float) -> bool:
    """Extend the proposer's lease; False if this token does not hold the lease any more."""
    with database.begin(durable=False) as txn:
        return proposer.renew(txn, study_id=study.id, token=token, lease_s=lease_s)


def release_lease(
    database: Database, study: Study, *, token: str, no_point_left: bool = False
) -> None:
    """
    Give up the proposer's lease without storing points.

    Args:
        no_point_left: Whether every point of the space already belongs to a trial or a proposal. If
            so, no further proposals are made, and the study is FINISHED when all its trials have
            ended.
    """
    with database.begin(durable=False) as txn:
        is_mine = proposer.release(txn, study_id=study.id, token=token)
        if is_mine and no_point_left:
            proposer.end_draws(txn, study_id=study.id)


def release_lease_of_dead(
    database: Database, study: Study, *, is_alive: Callable[[Process], bool]
) -> bool:
    """
    Give up a lease before its expiry if the holder was a process of this host that has died.

    Args:
        is_alive: Tells whether a process may still run; True for processes of other hosts.

    Returns:
        Whether the lease was given up.
    """
    with database.begin(write=False) as txn:
        holder = proposer.holder(txn, study_id=study.id)
    if holder is None or is_alive(holder[1]):
        return False
    with database.begin(durable=False, single=True) as txn:
        return proposer.release(txn, study_id=study.id, token=holder[0])


def end_draws(database: Database, study: Study) -> None:
    """Allow no further proposals: each point of the space belongs to a trial or a proposal."""
    with database.begin() as txn:
        studies.lock(txn, study_id=study.id)
        proposer.end_draws(txn, study_id=study.id)


def store_block(
    database: Database,
    study: Study,
    points: Sequence[Point],
    *,
    token: str,
    answers: Answers | None = None,
) -> bool:
    """
    Store the points of a fit as the study's next proposals, and give up the proposer's lease.

    These points are left out: points that must be unique although a trial or a proposal has their
    params, points that the budget does not allow, points after about 1 MiB of JSON, and those that
    `store_proposals` does not store. Draws are given under the lock of the study's row, so that
    they are consecutive.

    Args:
        answers: What the study's resource function has said about the points.

    Returns:
        Whether the points were stored, by this request or by an earlier send of it. False if
        another process has meanwhile taken the lease; that process stores its own points.

    Raises:
        RequestNeeded, DecisionFailed: See `store_by_index`.
    """
    with database.begin(durable=False) as txn:  # proposals that a crash undoes are made again
        if not proposer.release(txn, study_id=study.id, token=token):
            txn.abandon()
            return proposer.is_last(txn, study_id=study.id, token=token)
        following = proposer.outlook(txn, study_id=study.id)

        n_allowed = len(points) if following.n_left is None else following.n_left
        chosen = _new_points(txn, study, iter(points), following, n_points=n_allowed)

        _store(txn, study, chosen, first_draw=following.draw, answers=answers or {})
    return True


def store_by_index(
    database: Database,
    study: Study,
    points_at: Callable[[int], Iterable[Point]],
    *,
    draw: int,
    answers: Answers | None = None,
) -> bool:
    """
    Store a point for a worker that has waited long enough for a model; this needs no lease.

    A duplicate request can store one more point, which a later ask takes. Several workers that have
    seen the same draw without a proposal may each store a point, up to `MOST_BY_INDEX` of them.

    Args:
        points_at: Returns the points to choose from, given the draw. The first point that need not
            be unique, or that neither a trial nor a proposal has, is stored.
        draw: The next draw when the worker last looked; it had no proposal then.
        answers: What the study's resource function has said about configs.

    Returns:
        False if each of the points belongs to a trial or a proposal already. True if a point was
        stored, or if none is needed: enough points are stored, or the budget is used up.

    Raises:
        RequestNeeded: The resource function has not been asked about a config; nothing was stored.
        DecisionFailed: The study's trials ask for 64 other sets of resources already; nothing was
            stored.
    """
    with database.begin(durable=False) as txn:
        studies.lock(txn, study_id=study.id)
        following = proposer.outlook(txn, study_id=study.id)
        is_late = following.draw >= draw + MOST_BY_INDEX
        if is_late or following.n_left == 0:
            txn.abandon()
            return True

        points = iter(points_at(following.draw))
        chosen = _new_points(txn, study, points, following, n_points=1)

        _store(txn, study, chosen, first_draw=following.draw, answers=answers or {})
    return bool(chosen)


def _new_points(
    txn: Txn, study: Study, points: Iterator[Point], following: Outlook, *, n_points: int
) -> list[Point]:
    """
    Take up to `n_points` points.

    A point that must be unique is left out if a trial or a proposal already has its params.
    """
    chosen: dict[str, Point] = {}
    while candidates := list(islice(points, n_points - len(chosen))):
        hashes = [params_hash(point.params) for point in candidates]
        known = proposer.known_hashes(
            txn, study_id=study.id, from_draw=following.next_draw, hashes=hashes
        ) | set(chosen)
        for key, point in zip(hashes, candidates, strict=True):
            if key not in known or not point.is_unique:
                chosen.setdefault(key, point)
    return list(chosen.values())


def _store(
    txn: Txn, study: Study, points: Sequence[Point], *, first_draw: int, answers: Answers
) -> None:
    """Store the points that fit into one transaction; see `propose.in_parts`."""
    computed = (
        (draw, _proposal(study, point, draw, answers))
        for draw, point in enumerate(points, start=first_draw)
    )
    proposed = next(in_parts(computed), None)
    if proposed is not None:
        store_proposals(txn, study, proposed)


def _proposal(study: Study, point: Point, draw: int, answers: Answers) -> Proposal:
    config = study.space.config(point.params)
    return Proposal(
        params=point.params,
        config=config,
        origin=point.origin,
        bracket=study.scheduler.bracket_of(seed=study.seed, draw=draw),
        space_version=study.space_version,
        is_unique=point.is_unique,
        request=answer_for(study.resources, config, answers),
    )
