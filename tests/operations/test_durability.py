"""What an operation has answered survives a crash of the server; a claim need not: it is made again."""

from contextlib import closing

import pytest
from harness import duplicate_requests
from harness.arrange import dump
from harness.postgres import PostgresServer

from studydb.db import connect, migrate

WAITING = (
    duplicate_requests.reporting,
    duplicate_requests.reporting_at_a_rung,
    duplicate_requests.completing,
    duplicate_requests.completing_at_once,
    duplicate_requests.saving,
    duplicate_requests.stopping_a_running_one,
)

# What is not written at its COMMIT stays in the server's memory for so long.
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


@pytest.fixture(scope="module")
def server():
    with PostgresServer(fsync=True, settings=LAZY) as server:
        migrate.upgrade(server.url())
        yield server


def crashed_after(server, arranged):
    """What the rows said before a call, after it, and after a crash that followed at once."""
    database = connect(server.url())
    call = arranged(database)
    before = dump(database)
    call(database)
    after = dump(database)
    server.stop("immediate")
    database.close()
    server.start()
    with closing(connect(server.url())) as database:
        return before, after, dump(database)


@pytest.mark.parametrize("arranged", WAITING, ids=lambda it: it.__name__)
def test_answered_call_survives_a_crash(server, arranged):
    _, after, found = crashed_after(server, arranged)

    assert found == after


def test_claim_survives_whole_or_not_at_all(server):
    before, after, found = crashed_after(server, duplicate_requests.claiming)

    assert found in (before, after)
