"""Concurrent upgrades of an empty database all succeed; an upgrade waits for another writer."""

import sqlite3
import sys
from contextlib import closing

import pytest
from harness.commands import run_command

from studydb.db import connect, migrate, revisions

PROCESSES = 12

START = """
import os, sys
from studydb.db import migrate

turn, go = os.pipe()
processes = []
for _ in range(int(sys.argv[1])):
    processes.append(os.fork())
    if not processes[-1]:
        os.close(go)
        os.read(turn, 1)  # returns when the parent closes its end
        for url in sys.argv[2:]:
            migrate.upgrade(url)
        sys.exit()
os.close(go)
print(sum(os.waitpid(process, 0)[1] == 0 for process in processes))
"""


@pytest.mark.slow
def test_several_processes_can_upgrade_an_empty_database_at_the_same_time(
    empty_sqlite_url, empty_postgres_url
):
    urls = [empty_sqlite_url, empty_postgres_url]

    ran = run_command([sys.executable, "-c", START, str(PROCESSES), *urls])

    assert (ran.stderr, ran.stdout) == ("", f"{PROCESSES}\n")
    for url in urls:
        database = connect(url)
        with database.begin(write=False) as txn:
            assert txn.raw(f"SELECT version_num FROM {revisions.TABLE}")[1] == [(revisions.HEAD,)]
        database.close()


def test_upgrade_waits_while_another_process_writes_to_a_file_that_is_not_yet_in_wal_mode(
    empty_sqlite_url, monkeypatch
):
    path = empty_sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waits = []

        def end_the_other_transaction(seconds):
            waits.append(seconds)
            other.rollback()

        monkeypatch.setattr(migrate.time, "sleep", end_the_other_transaction)

        migrate.upgrade(empty_sqlite_url)

    assert len(waits) == 1
    assert migrate.current(empty_sqlite_url) == revisions.HEAD
