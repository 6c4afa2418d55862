"""A client of a study, with the operations that benchmarks time."""

import random
from uuid import uuid4

from benchmarks import loading
from benchmarks.space import STUDY
from benchmarks.timing import Operation
from studydb.db import connect
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import LEASE_S, Batch, Claimant, Lease
from studydb.lease.acquire import Acquirer
from studydb.operations.ask import ask
from studydb.operations.create import load
from studydb.operations.finish import finish
from studydb.operations.overview import read_overview
from studydb.operations.reads import best_trials
from studydb.operations.register import register
from studydb.operations.report import report
from studydb.processes import this_process

PER_PROCESS = 75
"""
Clients per process. With one client per process, the run would mostly measure how the kernel
switches processes.
"""


class Client:
    """A worker of one study, with its own connection."""

    def __init__(self, url: str) -> None:
        self.database = connect(url, connections=1)
        self.study = load(self.database, STUDY)
        self.worker_id = register(
            self.database,
            self.study,
            uuid=str(uuid4()),
            process=this_process(),
            slots=1,
            lease_s=LEASE_S,
            version="0",
        )
        self.acquirer = Acquirer(
            self.database, self.study, worker_id=self.worker_id, lease_s=LEASE_S
        )

    def operations(self) -> dict[str, Operation]:
        """
        The operations by name.

        Two calls are not timed: the ask that makes a trial for a report, and each trial's finish.
        """
        return {
            "claim": Operation(self.claim, after=self.finish),
            "ask": Operation(self.ask, after=self.finish),
            "report": Operation(lambda lease: self.report(lease, 1), self.ask, self.finish),
            "decide": Operation(
                lambda lease: self.report(lease, loading.MILESTONE), self.ask, self.finish
            ),
            "status": Operation(self.status),
            "best": Operation(self.best),
        }

    def claim(self, _: object = None) -> Lease:
        claimed = self.acquirer.acquire()
        assert claimed is not None
        return claimed.lease

    def ask(self, _: object = None) -> Lease:
        """Make a RUNNING trial."""
        claimant = Claimant(self.worker_id, uuid4().hex, LEASE_S)
        claimed = ask(self.database, self.study, claimant, again=False)
        assert claimed is not None
        return claimed.lease

    def report(self, lease: Lease, step: int) -> Lease:
        result = Result(step, random.uniform(0.2, 1.2), {}, 1.0)
        report(self.database, self.study, lease=lease, batch=Batch(1, (result,), 0, Summary()))
        return lease

    def finish(self, lease: Lease) -> None:
        finish(self.database, self.study, lease=lease, outcome=Reason.COMPLETED, batch=Batch(2))

    def status(self, _: object = None) -> None:
        read_overview(self.database, self.study)

    def best(self, _: object = None) -> None:
        best_trials(self.database, self.study)

    def close(self) -> None:
        self.database.close()
