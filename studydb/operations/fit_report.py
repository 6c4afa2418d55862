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
    A request that no live worker fits, not even when it is empty.

    Attributes:
        number: The first PENDING trial with this request; None for the study's next new trial.
        nearest: What the worker offers that lacks least; None if no worker is alive.
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
        misfits: In the order of the queue.
    """

    loads: Mapping[str, Load]
    misfits: list[Misfit]


def read_fit_report(database: Database, study: Study) -> FitReport | None:
    """Read the report; None if neither the study nor a trial asks for anything."""
    with database.begin(write=False, snapshot=True) as txn:
        return fit_report_in(txn, study, makes_new=False)


def fit_report_in(txn: Txn, study: Study, *, makes_new: bool) -> FitReport | None:
    """
    Do the work of `read_fit_report` within a transaction.

    Args:
        makes_new: Whether the study's budget allows new trials, which ask what the study asks. If
            a function says what each of them asks, those that fit no worker are PENDING.
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
