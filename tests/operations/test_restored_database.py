"""A database that was restored hands out attempt numbers again: the token tells whose they are."""

import pytest
from harness.arrange import SimulatedWorker, dump, enqueued, new_study

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
def forgotten(database, study):
    """A lease of the first attempt that the restored database knows nothing of."""
    lease = SimulatedWorker(database, study).claim().lease
    with database.begin() as txn:
        txn.raw("DELETE FROM attempt")
        txn.raw("UPDATE trial SET state = 'PENDING', attempt = 0, token = NULL")
    return lease


@pytest.mark.parametrize("write", [report, finish])
def test_attempt_from_before_a_restore_does_not_get_the_answer_for_its_number(
    database, study, forgotten, write
):
    namesake = SimulatedWorker(database, study).claim()
    namesake.report(0.5)
    namesake.report(0.4)
    namesake.finish()
    before = dump(database)

    more = {"outcome": Reason.COMPLETED} if write is finish else {}
    with pytest.raises(LeaseLost):
        write(database, study, lease=forgotten, batch=Batch(1), **more)

    assert namesake.lease.attempt == forgotten.attempt
    assert dump(database) == before
