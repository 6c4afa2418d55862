"""Databases that exist for one run of a benchmark."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from harness import postgres

from studydb.db import migrate

LONG_CHECKPOINTS = {"max_wal_size": "4GB", "checkpoint_timeout": "30min"}
"""A contender must not pay for the checkpoint of another one's writes."""


@contextmanager
def postgresql_server(*, fsync: bool, connections: int = 200) -> Iterator[str]:
    """
    The URL of a PostgreSQL server: that of STUDYDB_TEST_DSN, else one that is started.

    Args:
        fsync: For a server that is started; True gives commits their real cost.
        connections: The server's limit.
    """
    named = os.environ.get(postgres.DSN_VARIABLE)
    if named:
        yield named
        return
    settings = LONG_CHECKPOINTS | {"max_connections": str(connections)}
    with postgres.PostgresServer(fsync=fsync, settings=settings) as server:
        yield server.url()


@contextmanager
def databases(server_url: str, *names: str) -> Iterator[dict[str, str]]:
    """Create databases on a server; yield their URLs by purpose."""
    with ExitStack() as stack:
        urls = {}
        for name in names:
            database = f"studydb_bench_{name}_{uuid.uuid4().hex[:12]}"
            urls[name] = postgres.create_database(server_url, database)
            stack.callback(postgres.drop_database, server_url, database)
        yield urls


@contextmanager
def copy(server_url: str, url: str) -> Iterator[str]:
    """Copy a database that has no connections; return the copy's URL."""
    original = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    database = f"studydb_bench_copy_{uuid.uuid4().hex[:12]}"
    made = postgres.create_database(server_url, database, template=str(original))
    try:
        yield made
    finally:
        postgres.drop_database(server_url, database)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for SQLite files and journals."""
    with tempfile.TemporaryDirectory(prefix="studydb-bench-") as path:
        yield Path(path)


def with_tables(url: str) -> str:
    """Create studydb's tables in a database; return its URL."""
    migrate.upgrade(url)
    return url


def conditions(server_url: str) -> dict[str, Any]:
    """The conditions of a server that a reader needs to judge its numbers."""
    with postgres.connect(server_url) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("server_version", "fsync", "synchronous_commit")
        }
    return {"cores": os.cpu_count()} | {name: row[0] for name, row in shown.items() if row}
