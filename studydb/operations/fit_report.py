"""Read which requests for resources fit no live worker, and what the workers use."""

from collections.abc import Mapping
from dataclasses import dataclass

from studydb.db import Database, Txn
from studydb.domain.records import QUEUE_START, Study
from studydb.domain.resources import OF_STUDY, Capacity, Resources, nearest_offer
from studydb.store import resource_classes
from studydb.store.resource_classes import Load


@dataclass(frozen=True, slots=True)
class Misfit:
    """
    A request that fits no live worker, not even a worker without trials.

    Attributes:
        number: The first PENDING trial with this request; None for the study's next new trial.
        nearest: The offer that lacks least of the request; None if no worker is alive.
    """

    number: int | None
    asked: Resources
    nearest: Capacity | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """
    How a study's requests fit its live workers.

    Attributes:
        loads: What each live worker offers and uses, by UUID, newest first.
        misfits: First the requests of PENDING trials, in the order of the queue.
    """

    loads: Mapping[str, Load]
    misfits: list[Misfit]


def read_fit_report(database: Database, study: Study) -> FitReport | None:
    """Report on PENDING trials; None if neither the study nor a trial asks for resources."""
    with database.begin(write=False, snapshot=True) as txn:
        return fit_report_in(txn, study, makes_new=False)


def fit_report_in(txn: Txn, study: Study, *, makes_new: bool) -> FitReport | None:
    """
    Do the work of `read_fit_report` within a transaction.

    Args:
        makes_new: Whether the study's budget allows new trials, so that what the study asks for
            them is reported, too. If a resource function says what each new trial asks for, workers
            make trials that do not fit PENDING (`leave_draw`), so only PENDING ones are reported.
    """
    queues = resource_classes.queues(txn, study_id=study.id, after_position=QUEUE_START, depth=1)
    if not queues:
        return None
    loads = resource_classes.loads(txn, study_id=study.id)
    offers = [load.offers for load in loads.values()]

    def is_fit(asked: Resources) -> bool:
        return any(each.fits(asked) for each in offers)

    waiting = sorted(
        (queue.positions[0], queue.request) for queue in queues.values() if queue.positions
    )
    misfits = [
        Misfit(position.number, asked, nearest_offer(asked, offers))
        for position, asked in waiting
        if not is_fit(asked)
    ]
    of_study = queues[OF_STUDY].request
    if makes_new and not study.asks_by_config and not is_fit(of_study):
        misfits.append(Misfit(None, of_study, nearest_offer(of_study, offers)))
    return FitReport(loads, misfits)
