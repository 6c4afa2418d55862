"""
The tests' PostgreSQL server keeps committed rows in a crash and deletes its files at its end.

Its errors say why it cannot start, and its fixtures give each test a separate database.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from harness import postgres

ROOT = Path(__file__).parents[2]

START_AND_REPORT = """
import sys; sys.path.insert(0, "tests")
from harness import postgres
server = postgres.PostgresServer()
server.start()
print(server.directory, flush=True)
sys.stdin.read()
"""


def test_committed_row_survives_an_immediate_stop(crashable_postgres):
    server = crashable_postgres
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (7)")

    server.stop("immediate")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url())
    server.start()

    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(7,)]
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_server_of_a_killed_process_ends_and_its_directory_is_deleted():
    owner = subprocess.Popen(
        [sys.executable, "-c", START_AND_REPORT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        directory = Path(owner.stdout.readline().strip())
        assert (directory / "data" / "postmaster.pid").exists()

        owner.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 30
    while directory.exists():
        assert time.monotonic() < deadline, f"{directory} is still there"
        time.sleep(0.05)


def test_error_about_missing_binaries_names_the_extra_and_the_variable_that_help(monkeypatch):
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match=r"studydb\[dev\].*STUDYDB_TEST_DSN"):
        postgres.PostgresServer()


def test_error_of_a_server_that_cannot_start_shows_the_end_of_its_log():
    server = postgres.PostgresServer(settings={"max_connections": "none"})

    with pytest.raises(RuntimeError, match="max_connections"):
        server.start()

    server.close()
    assert not server.directory.exists()


def test_fixtures_give_a_test_its_own_empty_or_migrated_database(empty_postgres_url, postgres_url):
    with postgres.connect(empty_postgres_url) as empty, postgres.connect(postgres_url) as migrated:
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"

        assert empty.execute(count).fetchone() == (0,)
        assert migrated.execute(count).fetchone() > (10,)
