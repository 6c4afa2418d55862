"""Find a worker by the beginning of its id, and ask it to give back its trials and to end."""

import re
from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.errors import NotAllowed, NotFound, UsageError
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import DRAIN, Request, Worker
from studydb.processes import is_alive
from studydb.store import events, workers

SHOWN = 5
"""The most workers that the error message names if several ids begin with the text."""


def find_worker(database: Database, text: str) -> Worker:
    """
    Find the worker whose id begins with a text.

    Raises:
        NotFound: No id begins with the text.
        UsageError: Several ids begin with the text.
    """
    found: list[Worker] = []
    if re.fullmatch(r"[0-9a-f-]+", text):
        with database.begin(write=False) as txn:
            found = workers.with_uuid_prefix(txn, prefix=text, limit=SHOWN)
    if not found:
        raise NotFound(f"There is no worker {text!r}. `studydb workers` lists them.")
    if len(found) > 1:
        names = ", ".join(worker.uuid[: len(text) + 4] for worker in found)
        raise UsageError(
            f"{text!r} is the beginning of several workers' ids: {names}. Type more characters."
        )
    return found[0]


def drain(database: Database, worker: Worker, request: Request) -> None:
    """
    Ask a worker to end. While it runs trials or looks for work, it reads the request within 4 s.

    Raises:
        NotAllowed: The worker has ended, or was a process of this host that has died.
    """
    with suppress(Duplicate), database.begin() as txn:
        events.append_request(
            txn,
            study_id=worker.study_id,
            kind=EventKind.DRAINED,
            request=request,
            worker_id=worker.id,
        )
        if not workers.set_request(txn, worker_id=worker.id, request=DRAIN):
            raise NotAllowed(f"The worker {worker.uuid} has ended already.")
        if not is_alive(worker.process):
            raise NotAllowed(
                f"The process of worker {worker.uuid} is dead. Its trials are recovered by the "
                "next worker that starts on this host, or by any worker when their leases expire."
            )
