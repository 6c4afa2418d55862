"""After a restore, an attempt number can be given again; the token tells the attempts apart."""

import pytest
from harness.arrange import SimulatedWorker, enqueued, new_study, unchanged_rows

from studydb.domain.errors import LeaseLost
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch
from studydb.operations.finish import finish
from studydb.operations.report import report


@pytest.fixture
def study(database, clock):
    study = new_study(database)
    enqueued(database, study)
    return study


@pytest.fixture
def lost_lease(database, study):
    """The lease of a claim that is missing in the restored database."""
    lease = SimulatedWorker(database, study).claim().lease
    with database.begin() as txn:
        txn.raw("DELETE FROM attempt")
        txn.raw("UPDATE trial SET state = 'PENDING', attempt = 0, token = NULL")
    return lease


@pytest.mark.parametrize("write", [report, finish])
def test_attempt_from_before_a_restore_does_not_get_the_answer_of_its_successor(
    database, study, lost_lease, write
):
    successor = SimulatedWorker(database, study).claim()
    successor.report(0.5)
    successor.report(0.4)
    successor.finish()
    assert successor.lease.attempt == lost_lease.attempt

    more = {"outcome": Reason.COMPLETED} if write is finish else {}
    with unchanged_rows(database), pytest.raises(LeaseLost):
        write(database, study, lease=lost_lease, batch=Batch(1), **more)
