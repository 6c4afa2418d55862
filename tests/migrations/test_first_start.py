"""Two dozen processes upgrade an empty database at the same time, and all succeed."""

import subprocess
import sys
from pathlib import Path

from studydb.db import connect, revisions

ROOT = Path(__file__).parents[2]

PROCESSES = 24

START = """
import sys
from studydb.db import migrate
print("ready", flush=True)
sys.stdin.readline()
for url in sys.argv[1:]:
    migrate.upgrade(url)
"""


def test_all_processes_that_upgrade_an_empty_database_at_once_succeed(
    empty_sqlite_url, empty_postgres_url
):
    urls = [empty_sqlite_url, empty_postgres_url]
    starting = [
        subprocess.Popen(
            [sys.executable, "-c", START, *urls],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for process in starting:
        assert process.stdout.readline() == "ready\n"

    for process in starting:
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in starting]

    assert ends == [("", 0)] * PROCESSES
    for url in urls:
        database = connect(url)
        with database.begin(write=False) as txn:
            assert txn.raw(f"SELECT version_num FROM {revisions.TABLE}")[1] == [(revisions.HEAD,)]
        database.close()
