"""Read which requests for resources fit no live worker, and what the workers use."""

from collections.abc import Mapping

from msgspec import Struct

from studydb.db import Txn
from studydb.domain.life.states import State
from studydb.domain.records import QUEUE_START, Study, TrialRow
from studydb.domain.resources import OF_STUDY, Capacity, Resources, nearest_offer
from studydb.operations.leave_draw import most_waiting
from studydb.store import resource_classes, set_aside
from studydb.store.resource_classes import ClassQueue, Load


class Misfit(Struct, frozen=True):
    """
    A request for resources that would fit no live worker, even if nothing ran on the workers.

    Attributes:
        number: The number of a PENDING trial with this request (in a `FitReport`, the first of the
            queue); None if new trials have this request.
        nearest: The offer that is too small in the fewest resources; None if no worker is alive.
    """

    number: int | None
    asked: Resources
    nearest: Capacity | None


class FullQueue(Struct, frozen=True):
    """
    Why no new trial is made: enough trials with the same request wait already.

    Attributes:
        asked: What the next new trial and each waiting trial ask for.
        n_waiting: How many trials with this request may wait (`most_waiting`). The queue is full,
            so at least this many wait now.
        fits_a_worker: Whether the request would fit a live worker if nothing ran on it.
    """

    asked: Resources
    n_waiting: int
    fits_a_worker: bool


class FitReport(Struct, frozen=True):
    """
    How a study's requests for resources fit its live workers.

    Attributes:
        loads: What each live worker offers and uses, by UUID, newest first.
        misfits: The requests that fit no worker: first those of PENDING trials that are not in
            back-off, in the order of the queue, then the request of new trials. PENDING trials are
            left out if the study is not RUNNING, or if `max_concurrent` trials run.
        full: Set if no new trial is made because enough trials with its request wait; else None.
    """

    loads: Mapping[str, Load]
    misfits: list[Misfit]
    full: FullQueue | None = None


class TrialFit(Struct, frozen=True):
    """
    What a trial asks for.

    Attributes:
        misfit: Set if the trial is PENDING and its request fits no live worker; else None.
        offers: What the live workers offer; empty if the trial is not PENDING.
    """

    asked: Resources
    misfit: Misfit | None
    offers: list[Capacity]


def trial_fit_in(txn: Txn, study: Study, trial: TrialRow) -> TrialFit | None:
    """Read what a trial asks for; None if neither the study nor a trial asks for anything."""
    name = resource_classes.of_trial(txn, trial_id=trial.id)
    # The trial's class is read first, then the study's classes. Classes are never removed, so the
    # trial's class is found, unless the study has no classes, or someone has written an unknown
    # class into the trial's row by SQL.
    asked = resource_classes.read(txn, study_id=study.id).get(name)
    if asked is None:
        return None
    if trial.state is not State.PENDING:
        return TrialFit(asked, None, [])
    offers = resource_classes.capacities(txn, study_id=study.id)
    return TrialFit(asked, _misfit(trial.number, asked, offers), offers)


def _misfit(number: int | None, asked: Resources, offers: list[Capacity]) -> Misfit | None:
    if not asked.amounts or any(each.fits(asked) for each in offers):
        return None  # a request for nothing is no misfit even while no worker is alive
    return Misfit(number, asked, nearest_offer(asked, offers))


def fit_report_in(txn: Txn, study: Study, *, makes_new: bool) -> FitReport | None:
    """
    Report how requests fit; None if neither the study nor a trial asks for resources.

    Args:
        makes_new: Whether the study's budget allows new trials. If so, the request of new trials is
            checked as well, unless the study has a resource function. With such a function, new
            trials may have different requests, and only those of PENDING trials are checked. If
            enough trials with the next draw's request wait already, `FitReport.full` is set.
    """
    queues = resource_classes.queues(txn, study_id=study.id, after_position=QUEUE_START, depth=1)
    if not queues:
        return None
    loads = resource_classes.loads(txn, study_id=study.id)
    offers = [load.offers for load in loads.values()]

    waiting = sorted(
        (queue.positions[0], queue.request) for queue in queues.values() if queue.positions
    )
    requests: list[tuple[int | None, Resources]] = [
        (position.number, asked) for position, asked in waiting
    ]
    if makes_new and not study.asks_by_config:
        requests.append((None, queues[OF_STUDY].request))
    found = (_misfit(number, asked, offers) for number, asked in requests)
    return FitReport(
        loads,
        [misfit for misfit in found if misfit is not None],
        _full_queue(txn, study, queues, offers) if makes_new and study.asks_by_config else None,
    )


def _full_queue(
    txn: Txn, study: Study, queues: Mapping[str, ClassQueue], offers: list[Capacity]
) -> FullQueue | None:
    most = most_waiting(study)
    name = set_aside.full_class(txn, study_id=study.id, most=most)
    if name is None:
        return None
    asked = queues[name].request
    return FullQueue(asked, most, fits_a_worker=_misfit(None, asked, offers) is None)
