"""
A call whose reply was lost is sent again. The call's change is stored exactly once.

`test_cut_connections.py` severs the connection of each operation at each of its COMMITs.
"""

import pytest
from harness.arrange import (
    LEASE_S,
    SimulatedWorker,
    dump,
    enqueued,
    leave_one_study,
    new_study,
    recover_after_expiry,
    retry_while_busy,
    rows,
    token,
)
from harness.cut_commits import cut
from harness.duplicate_requests import FINISHES, OPERATIONS

from studydb.domain.errors import StorageTransient, StorageUnreachable
from studydb.lease.acquire import Acquirer


@pytest.fixture(autouse=True)
def _standing_clock(clock):
    """Stop the clock: a resend may store the current time, which must not count as a change."""


@pytest.fixture
def each_operation(database):
    """
    Yield the name of each operation, and the function that arranges the operation.

    Before each operation, all rows are deleted, and another study is stored.
    """

    def operations():
        for operation, arranged in OPERATIONS.items():
            leave_one_study(database)
            yield operation, arranged

    return operations()


def same(operation, again, answer):
    """Whether a resend got the stored answer; a finish that is sent again answers None."""
    return again is None if operation in FINISHES else again == answer


@pytest.mark.slow
def test_resend_gives_the_stored_answer_and_changes_nothing(database, each_operation, subtests):
    for operation, arranged in each_operation:
        call = arranged(database)

        answer = call(database)
        after = dump(database)
        again = call(database)

        with subtests.test(operation):
            assert same(operation, again, answer)
            assert dump(database) == after


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_ask_that_is_cut_at_any_of_its_commits_makes_one_trial(database, when, nth):
    """
    The first ask of a study also commits proposals.

    On PostgreSQL the ask's reads have COMMITs, too. On SQLite the ask has two COMMITs in all.
    """
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    token_ = token()
    with (
        cut(database, when, nth=nth if database.postgresql else min(nth, 2)),
        pytest.raises(StorageTransient),
    ):
        worker.ask(token_)

    run = retry_while_busy(lambda: worker.ask(token_))

    assert run.claimed == worker.ask(token_).claimed
    assert rows(database, "SELECT draw FROM trial") == [(0,)]
    assert rows(database, "SELECT next_draw, n_counted FROM study") == [(1, 1)]


def test_worker_claims_with_a_new_token_after_its_unanswered_claim_was_recovered(database, clock):
    study = new_study(database)
    enqueued(database, study)
    worker = SimulatedWorker(database, study)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    acquirer.look()  # reads the resource classes, so the first COMMIT of `acquire` is the claim's
    with cut(database, "after"), pytest.raises(StorageUnreachable):
        acquirer.acquire()
    recover_after_expiry(clock, database, study)

    assert retry_while_busy(acquirer.acquire) is None
    assert acquirer.acquire() is not None
