"""Workers without processes, which offer resources."""

from harness import arrange
from studydb.domain.class_queues import READ_AGAIN_S
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch
from studydb.lease.acquire import Acquirer
from studydb.lease.fitting import Fitting
from studydb.operations.finish import finish
from studydb.operations.register import register
from studydb.processes import this_process


class Clock:
    """A clock that a test sets forward."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class Node:
    """
    A worker that offers a capacity; `start` claims a trial and holds what it asks for.

    Args:
        more: Further arguments of `Fitting`.
    """

    def __init__(self, database, study, capacity, clock=None, reserve_after_s=60.0, **more):
        self.database, self.study, self.clock = database, study, clock or Clock()
        self.id = register(
            database,
            study,
            uuid=arrange.token(),
            process=this_process(),
            slots=8,
            lease_s=arrange.LEASE_S,
            version="0",
            capacity=capacity,
        )
        self.fitting = Fitting(
            database,
            study,
            worker_id=self.id,
            capacity=capacity,
            reserve_after_s=reserve_after_s,
            clock_s=self.clock,
            **more,
        )
        self.acquirer = self._new_acquirer()

    def _new_acquirer(self):
        return Acquirer(
            self.database,
            self.study,
            worker_id=self.id,
            lease_s=arrange.LEASE_S,
            fitting=self.fitting,
            clock_s=self.clock,
        )

    def start(self):
        self.clock.now_s += 2 * READ_AGAIN_S  # so that the claim reads the queues again
        self.acquirer = self._new_acquirer()
        return self.acquirer.acquire()

    def number(self):
        """Start a trial; return its number, or None if no trial fits."""
        claim = self.start()
        return None if claim is None else claim.lease.number

    def end(self, claim):
        finish(
            self.database, self.study, lease=claim.lease, outcome=Reason.COMPLETED, batch=Batch(1)
        )
        self.fitting.release(claim)
