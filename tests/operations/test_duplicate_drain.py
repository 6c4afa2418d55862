"""A duplicate drain succeeds even if its worker is dead; a new drain of this worker is refused."""

import pytest
from harness.arrange import new_request, rows, unchanged_rows

from studydb.domain.errors import NotAllowed
from studydb.operations import drain as draining
from studydb.operations.drain import drain, find_worker


@pytest.fixture
def registered(database, worker):
    return find_worker(database, rows(database, "SELECT uuid FROM worker")[0][0])


def test_duplicate_drain_of_a_dead_worker_changes_nothing(database, registered, monkeypatch):
    request = new_request()
    drain(database, registered, request)
    monkeypatch.setattr(draining, "is_alive", lambda _: False)

    with unchanged_rows(database):
        drain(database, registered, request)


def test_drain_of_a_dead_worker_is_refused(database, registered, monkeypatch):
    monkeypatch.setattr(draining, "is_alive", lambda _: False)

    with unchanged_rows(database), pytest.raises(NotAllowed, match="is dead"):
        drain(database, registered, new_request())
