"""A drain that is sent again after a lost reply gives the stored answer."""

import pytest
from harness.arrange import PERSON, SimulatedWorker, dump, new_request, new_study, token

from studydb.domain.errors import NotAllowed
from studydb.domain.records import Request
from studydb.operations import drain as draining
from studydb.operations.drain import drain, find_worker


@pytest.fixture
def worker(database):
    simulated = SimulatedWorker(database, new_study(database))
    with database.begin(write=False) as txn:
        uuid = txn.raw(f"SELECT uuid FROM worker WHERE id = {simulated.id}")[1][0][0]
    return find_worker(database, uuid)


def test_duplicate_drain_of_a_worker_that_has_ended_changes_nothing(database, worker, monkeypatch):
    once = token()
    drain(database, worker, Request(once, PERSON))
    monkeypatch.setattr(draining, "is_alive", lambda _: False)
    before = dump(database)

    drain(database, worker, Request(once, PERSON))

    assert dump(database) == before


def test_drain_of_a_dead_worker_is_refused(database, worker, monkeypatch):
    monkeypatch.setattr(draining, "is_alive", lambda _: False)
    before = dump(database)

    with pytest.raises(NotAllowed, match="is dead"):
        drain(database, worker, new_request())

    assert dump(database) == before
