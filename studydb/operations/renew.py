"""Renew the leases of a worker, and tell it which of its attempts are to end."""

from collections.abc import Sequence

from msgspec import Struct, structs

from studydb.db import Database
from studydb.domain.life.decisions import Action, Verdict
from studydb.domain.life.ending import effective_verdict, requested_verdict
from studydb.domain.life.states import Status
from studydb.domain.records import Lease, Study
from studydb.operations.spending import Charge, charge
from studydb.store import leases, workers
from studydb.store.leases import RequestedTrial


class Renewal(Struct, frozen=True):
    """
    The answer to a renewal.

    Attributes:
        held: A verdict for each lease that was renewed, or None if the attempt continues. The key
            is the attempt's token. A lease that is missing was lost, or its attempt has ended.
        request: A person's request to the worker: "DRAIN" or None.
    """

    held: dict[str, Verdict | None]
    request: str | None


def renew(database: Database, study: Study, *, worker_id: int, held: Sequence[Lease]) -> Renewal:
    """
    Renew leases; store people's requests, and the limits that are reached, as verdicts.

    The worker is marked as alive, and running time is added to the study's spending. A verdict that
    refuses results stays. A verdict from a request changes with the request.
    """
    with database.begin(durable=False) as txn:
        verdicts: dict[str, Verdict | None] = {}
        by_token = {lease.token: lease for lease in held}
        renewed = leases.renew(txn, leases=held) if held else []
        ids = [by_token[row.token].trial_id for row in renewed]
        charged = charge(txn, study, trial_ids=ids) if renewed else Charge()

        for row in renewed:
            lease = by_token[row.token]
            status = Status.SPENT if charged.is_spent else row.status
            requested = requested_verdict(row.request, status)
            verdict = effective_verdict(row.verdict, requested)
            if verdict is None or not verdict.refuses_results:
                verdict = charged.within_time(lease.trial_id, verdict)
            if verdict != row.verdict:
                leases.set_verdict(txn, lease=lease, verdict=verdict)
            is_stop = verdict is not None and verdict.action is Action.STOP
            if verdict is not None and is_stop and row.request_now:
                verdict = structs.replace(verdict, at_once=True)
            verdicts[lease.token] = verdict

        request = workers.mark_alive(txn, worker_id=worker_id)
        charged.store(txn, study, key=worker_id)
    return Renewal(verdicts, request)


def is_requested(
    database: Database, *, held: Sequence[Lease], worker_id: int, known: str | None = None
) -> bool:
    """
    Tell, by a single statement without locks, whether a renewal would return a new request.

    The running time of the trials is not compared with its limit; only a renewal does that.

    Args:
        held: One lease or more.
        known: The request to the worker that the last renewal has returned.
    """
    with database.begin(write=False, single=True) as txn:
        rows, request = leases.requests(txn, leases=held, worker_id=worker_id)
    is_new = bool(rows) and request != known
    return is_new or any(row.request_now or row.verdict != _verdict(row) for row in rows)


def _verdict(row: RequestedTrial) -> Verdict | None:
    return effective_verdict(row.verdict, requested_verdict(row.request, row.status))
