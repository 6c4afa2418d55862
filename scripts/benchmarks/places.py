"""Servers, databases and folders that exist for one run of a benchmark."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from harness import postgres

from studydb.db import migrate

LONG_CHECKPOINTS = {"max_wal_size": "4GB", "checkpoint_timeout": "30min"}
"""With default settings, PostgreSQL's checkpoint of a slice's pages would run in a later slice."""


@contextmanager
def postgresql_server(*, fsync: bool, connections: int = 200) -> Iterator[str]:
    """
    Yield the URL of a PostgreSQL server: the value of STUDYDB_TEST_DSN, or a new server's URL.

    Args:
        fsync: Whether a new server waits for the disk, so that commits take their real time.
        connections: How many connections a new server allows.
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
    """Create databases on a server; yield their URLs by name."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(postgres.temporary_database(server_url)) for name in names}


def copy(server_url: str, url: str) -> AbstractContextManager[str]:
    """Copy a database that has no connections; yield the copy's URL."""
    original = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    return postgres.temporary_database(server_url, template=str(original))


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="studydb-bench-") as path:
        yield Path(path)


def with_tables(url: str) -> str:
    """Create studydb's tables in a database; return the database's URL."""
    migrate.upgrade(url)
    return url


def conditions(server_url: str) -> dict[str, Any]:
    """The host's cores and the server's version and settings, to be shown with the figures."""
    with postgres.connect(server_url) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("server_version", "fsync", "synchronous_commit")
        }
    return {"cores": os.cpu_count()} | {name: row[0] for name, row in shown.items() if row}
