"""A client waits only a limited time for the server's answer, except during a migration."""

import threading
import time

import pytest
from harness import arrange, postgres
from harness.arrange import new_study, rows, token
from harness.proxy import Proxy

from studydb.db import migrate, revisions, sessions
from studydb.domain.errors import StorageUnreachable
from studydb.domain.records import Request
from studydb.operations import enqueue as enqueueing
from studydb.store import events

SHORT_S = 0.5


@pytest.fixture
def proxy(postgres_url):
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def database(proxy, opened):
    """A client that connects through the proxy, and waits at most `SHORT_S` for an answer."""
    return opened(proxy.url(), connections=1, longest_silence=lambda: SHORT_S)


def enqueue(database, study, request_token):
    enqueueing.enqueue(database, study, {}, Request(request_token, "test"))


def read(database, study, request_token):
    with database.begin(write=False) as txn:
        events.data_of(txn, token=request_token)


def claim(database, study, request_token):
    arrange.SimulatedWorker(database, study).claim(request_token)


@pytest.mark.slow
@pytest.mark.parametrize("call", [enqueue, read, claim], ids=["pipeline", "reader", "chain"])
def test_request_without_an_answer_fails_and_can_be_made_again(proxy, database, call):
    study = new_study(database)
    request_token = token()
    call(database, study, token())  # opens the connection and prepares the statements
    proxy.freeze()

    began_s = time.monotonic()
    with pytest.raises(StorageUnreachable, match=r"gives no answer for .* s.*standby"):
        call(database, study, request_token)

    assert SHORT_S <= time.monotonic() - began_s < 20 * SHORT_S
    proxy.mend()
    call(database, study, request_token)
    if call is enqueue:
        assert rows(database, "SELECT count(*) FROM trial") == [(2,)]


def test_slow_answer_within_the_bound_is_awaited(proxy, opened):
    database = opened(proxy.url(), longest_silence=lambda: 60.0)

    with database.begin(write=False) as txn:
        assert txn.raw("SELECT pg_sleep(0.7), 1")[1][0][1] == 1


def test_bound_of_a_wait_can_be_shortened_during_the_wait(proxy, opened):
    bound_s = [600.0]
    database = opened(proxy.url(), longest_silence=lambda: bound_s[0])
    threading.Timer(SHORT_S, bound_s.__setitem__, (0, 0.1)).start()

    with pytest.raises(StorageUnreachable), database.begin(write=False) as txn:
        txn.raw("SELECT pg_sleep(50)")


@pytest.mark.slow
def test_late_answer_is_not_read_as_the_answer_to_the_next_request(proxy, database):
    study = new_study(database)
    proxy.freeze()
    with pytest.raises(StorageUnreachable), database.begin(write=False) as txn:
        txn.raw("SELECT 'late'")

    proxy.mend()

    assert rows(database, "SELECT 'next'") == [("next",)]
    assert rows(database, "SELECT name FROM study") == [(study.name,)]


@pytest.mark.slow
def test_migration_waits_for_another_migration_longer_than_the_longest_silence(
    empty_postgres_url, monkeypatch
):
    monkeypatch.setattr(sessions, "LONGEST_SILENCE_S", SHORT_S)
    with postgres.connect(empty_postgres_url) as other:
        other.execute(f"SELECT pg_advisory_lock({revisions.ADVISORY_LOCK})")
        ended = []
        upgrading = threading.Thread(
            target=lambda: ended.append(migrate.upgrade(empty_postgres_url))
        )
        upgrading.start()
        upgrading.join(4 * SHORT_S)

        assert upgrading.is_alive()
        other.execute(f"SELECT pg_advisory_unlock({revisions.ADVISORY_LOCK})")
        other.commit()
    upgrading.join(60)

    assert ended == [""]
