"""Renew the leases of a worker, and return the verdicts on its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from studydb.db import Database
from studydb.domain.life.decisions import Action, Verdict
from studydb.domain.life.ending import effective_verdict, requested_verdict
from studydb.domain.records import Lease
from studydb.store import leases, workers


@dataclass(frozen=True, slots=True)
class Renewal:
    """
    The answer to a renewal.

    Attributes:
        held: A verdict for each lease that was renewed, or None if the attempt continues. The key
            is the attempt's token. A lease that is missing was lost, or its attempt has ended.
        request: A person's request to the worker: "DRAIN" or None.
    """

    held: dict[str, Verdict | None]
    request: str | None


def renew(database: Database, *, worker_id: int, held: Sequence[Lease]) -> Renewal:
    """
    Renew leases, and store people's requests about the leased trials as verdicts.

    A scheduler's or rule's verdict stays. A verdict from a request changes with the request.
    """
    with database.begin(durable=False) as txn:
        verdicts: dict[str, Verdict | None] = {}
        by_token = {lease.token: lease for lease in held}
        for row in leases.renew(txn, leases=held) if held else ():
            lease = by_token[row.token]
            verdict = effective_verdict(row.verdict, requested_verdict(row.request, row.status))
            if verdict != row.verdict:
                leases.set_verdict(txn, lease=lease, verdict=verdict)
            is_stop = verdict is not None and verdict.action is Action.STOP
            if verdict is not None and is_stop and row.request_now:
                verdict = replace(verdict, at_once=True)
            verdicts[lease.token] = verdict

        request = workers.mark_alive(txn, worker_id=worker_id)
    return Renewal(verdicts, request)
