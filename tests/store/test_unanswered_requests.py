"""A server that takes requests and does not answer: every wait has a bound."""

import threading
import time

import pytest
from harness import arrange, postgres
from harness.arrange import new_study, rows, token
from harness.proxy import Proxy

from studydb.db import connect, migrate, revisions, sessions
from studydb.domain.errors import StorageUnreachable
from studydb.domain.records import Request
from studydb.operations import control
from studydb.store import events

SHORT_S = 0.5


@pytest.fixture
def line(postgres_url):
    """A proxy to the server that can be frozen."""
    with Proxy(postgres_url) as line:
        yield line


@pytest.fixture
def database(line):
    """A database behind that proxy, with a short bound."""
    database = connect(line.url(), connections=1, longest_silence=lambda: SHORT_S)
    yield database
    database.close()


def enqueue(database, study, sent):
    control.enqueue(database, study, {}, Request(sent, "test"))


def read(database, study, sent):
    with database.begin(write=False) as txn:
        events.data_of(txn, token=sent)


def claim(database, study, sent):
    worker = arrange.SimulatedWorker(database, study)
    worker.claim(sent)


@pytest.mark.parametrize("call", [enqueue, read, claim], ids=["pipeline", "reader", "chain"])
def test_request_without_an_answer_ends_and_can_be_made_again(line, database, call):
    study = new_study(database)
    sent = token()
    call(database, study, token())  # all is prepared, and the connection is open
    line.freeze()

    began_s = time.monotonic()
    with pytest.raises(StorageUnreachable, match=r"gives no answer for .* s.*standby"):
        call(database, study, sent)

    assert SHORT_S <= time.monotonic() - began_s < 20 * SHORT_S
    line.mend()
    call(database, study, sent)
    if call is enqueue:
        assert rows(database, "SELECT count(*) FROM trial") == [(2,)]


def test_slow_answer_within_the_bound_is_awaited(line):
    database = connect(line.url(), longest_silence=lambda: 60.0)

    with database.begin(write=False) as txn:
        assert txn.raw("SELECT pg_sleep(0.7), 1")[1][0][1] == 1
    database.close()


def test_bound_can_be_shortened_during_a_wait(line):
    bound_s = [600.0]
    database = connect(line.url(), longest_silence=lambda: bound_s[0])
    threading.Timer(SHORT_S, bound_s.__setitem__, (0, 0.1)).start()

    with pytest.raises(StorageUnreachable), database.begin(write=False) as txn:
        txn.raw("SELECT pg_sleep(50)")
    database.close()


def test_late_answer_is_not_read_as_the_answer_to_the_next_request(line, database):
    study = new_study(database)
    line.freeze()
    with pytest.raises(StorageUnreachable), database.begin(write=False) as txn:
        txn.raw("SELECT 'late'")

    line.mend()

    assert rows(database, "SELECT 'next'") == [("next",)]
    assert rows(database, "SELECT name FROM study") == [(study.name,)]


def test_migration_waits_without_bound_for_another_migration(empty_postgres_url, monkeypatch):
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
