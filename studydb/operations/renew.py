"""Renew exactly the leases that a worker holds, and learn what was decided about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from studydb.db import Database
from studydb.domain.life.decisions import Verdict
from studydb.domain.life.ending import standing, wanted
from studydb.domain.life.states import Status
from studydb.domain.records import Lease
from studydb.store import leases, workers
from studydb.store.trials import verdict_of


@dataclass(frozen=True, slots=True)
class Renewal:
    """
    What a renewal brings back.

    Attributes:
        held: Verdict (None to go on) by token, of the leases that still hold. One that is missing
            is lost, unless the worker has itself ended it since it asked.
        request: What is asked of the worker: "DRAIN" or None.
    """

    held: dict[str, Verdict | None]
    request: str | None


def renew(database: Database, *, worker_id: int, held: Sequence[Lease]) -> Renewal:
    """
    Renew leases; requests of people become verdicts here.

    A verdict of a scheduler or a rule stands; one that came from a request follows the request.
    """
    with database.begin(durable=False) as txn:
        verdicts: dict[str, Verdict | None] = {}
        by_token = {lease.token: lease for lease in held}
        for row in leases.renew(txn, leases=held) if held else ():
            lease, verdict = by_token[row.token], verdict_of(row)
            stands = standing(verdict, wanted(row.request, Status(row.status)))
            if stands != verdict:
                leases.set_verdict(txn, lease=lease, verdict=stands)
            verdicts[lease.token] = stands

        request = workers.seen(txn, worker_id=worker_id)
    return Renewal(verdicts, request)
