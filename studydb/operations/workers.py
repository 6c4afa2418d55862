"""Read the workers of a study or of all studies, each with its health, without locks."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum, auto

from msgspec import Struct, field, structs

from studydb.db import Database, Txn
from studydb.domain.listed_rows import ListedWorker
from studydb.domain.records import DRAIN, Process, Study
from studydb.processes import is_alive
from studydb.store import resource_classes, view_rows
from studydb.store.resource_classes import Load

MOST_WORKERS = 100


class Health(StrEnum):
    """
    The health of a worker.

    Attributes:
        DRAINING: The worker was asked to end, has not ended yet, and still sends heartbeats.
        SILENT: The worker has sent no heartbeat for longer than a lease lasts.
        DEAD: The worker's process ran on this host and does not run any more.
    """

    ALIVE = auto()
    DRAINING = auto()
    SILENT = auto()
    DEAD = auto()
    ENDED = auto()


class WorkerList(Struct, frozen=True):
    """
    Workers, newest first, each with its health at the database's time `at`.

    Attributes:
        loads: What each live worker offers and uses, by the worker's UUID; only for workers of
            studies with requests for resources.
    """

    workers: list[tuple[ListedWorker, Health]]
    at: datetime
    loads: Mapping[str, Load] = field(default_factory=dict)

    @property
    def n_alive(self) -> int:
        """How many of the listed workers are alive; draining workers count."""
        return sum(health in (Health.ALIVE, Health.DRAINING) for _, health in self.workers)


def list_workers(
    database: Database, study: Study | None = None, *, limit: int = MOST_WORKERS
) -> WorkerList:
    """Read the newest workers of a study, or of all studies, with their health and loads."""
    with database.begin(write=False) as txn:
        found = workers_in(txn, study_id=None if study is None else study.id, limit=limit)
        ids = resource_classes.studies(txn) if study is None else [study.id]
        loads: dict[str, Load] = {}
        for study_id in ids:
            if resource_classes.read(txn, study_id=study_id):
                loads |= resource_classes.loads(txn, study_id=study_id)
        return structs.replace(found, loads=loads)


def workers_in(txn: Txn, *, study_id: int | None, limit: int = MOST_WORKERS) -> WorkerList:
    """Read the same workers as `list_workers` within a transaction, but without their loads."""
    rows = view_rows.workers(txn, study_id=study_id, limit=limit)
    return WorkerList(
        [(row, _health(row, lease_s, process, txn.now)) for row, lease_s, process in rows], txn.now
    )


def _health(row: ListedWorker, lease_s: float, process: Process, now: datetime) -> Health:
    if row.ended_at is not None:
        return Health.ENDED
    if not is_alive(process):
        return Health.DEAD
    if (now - row.seen_at).total_seconds() > lease_s:
        return Health.SILENT
    return Health.DRAINING if row.request == DRAIN else Health.ALIVE
