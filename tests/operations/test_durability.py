"""An answered flush, save, finish or request survives a server's crash; a claim may be lost."""

from contextlib import closing

import pytest
from harness.arrange import dump
from harness.duplicate_requests import OPERATIONS
from harness.postgres import PostgresServer

from studydb.db import connect, migrate

DURABLE = (
    *("report", "report_at_a_rung", "finish", "finish_in_a_single_statement"),
    *("save", "stop_a_running_trial"),
)

# The WAL writer flushes every 10 s. Before its next flush, a commit that does not wait for the disk
# is only in memory, and a crash undoes it.
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


@pytest.fixture(scope="module")
def server():
    with PostgresServer(fsync=True, settings=LAZY) as server:
        migrate.upgrade(server.url())
        yield server


def crashed_after(server, operation):
    """Read all rows before a call, after the call, and after a crash of the server."""
    database = connect(server.url())
    call = OPERATIONS[operation](database)
    before = dump(database)
    call(database)
    after = dump(database)
    server.stop("immediate")
    database.close()
    server.start()
    with closing(connect(server.url())) as database:
        return before, after, dump(database)


@pytest.mark.parametrize("operation", DURABLE)
def test_answered_call_survives_a_crash(server, operation):
    _, after, found = crashed_after(server, operation)

    assert found == after


def test_claim_survives_a_crash_completely_or_not_at_all(server):
    before, after, found = crashed_after(server, "claim")

    assert found in (before, after)
