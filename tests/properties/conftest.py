"""
Fixtures for PostgreSQL and SQLite.

All tests of a file share a PostgreSQL database and an interleaver. Each test has its own SQLite
database.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from harness import postgres
from harness.interleaver import Interleaver

from studydb.db import Database, connect


@pytest.fixture(scope="module")
def stage(postgres_server: str, postgres_template: str) -> Iterator[tuple[Database, Interleaver]]:
    """A database, and an interleaver with four connections to it."""
    with (
        postgres.temporary_database(postgres_server, template=postgres_template) as url,
        closing(connect(url)) as database,
        closing(Interleaver(url)) as interleaver,
    ):
        yield database, interleaver


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Database]:
    with closing(connect(sqlite_url)) as database:
        yield database
