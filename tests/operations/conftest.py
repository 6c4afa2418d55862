"""Fixtures. Tests here that run on both databases also run through PgBouncer if it is installed."""

from contextlib import closing
from datetime import UTC, datetime

import pytest
from harness.arrange import SimulatedWorker, new_study
from harness.kept_database import KeptDatabase
from harness.pooler import pgbouncer, pooled_url, storage_url

from studydb.db import connect

__all__ = ["pgbouncer", "pooled_url", "storage_url"]


@pytest.fixture
def study(database):
    return new_study(database)


@pytest.fixture
def worker(database, study):
    return SimulatedWorker(database, study)


@pytest.fixture
def run(worker):
    """The first attempt of the study's first trial."""
    return worker.take()


@pytest.fixture
def connections(postgres_url):
    """
    Two clients of one PostgreSQL database, whose clocks show the same fixed time.

    A test holds a call of the first client while the second client makes a call.
    """
    # With `pooler=transaction`, even a single statement is sent between BEGIN and COMMIT, so that a
    # test can hold the call before its COMMIT.
    slow = connect(f"{postgres_url}&pooler=transaction")
    fresh = connect(postgres_url)
    slow.clock = fresh.clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    yield slow, fresh
    slow.close()
    fresh.close()


@pytest.fixture(scope="session")
def kept_postgres(postgres_server, postgres_template, administration):
    with closing(KeptDatabase(postgres_server, postgres_template, administration)) as kept:
        yield kept


@pytest.fixture
def postgres_url(kept_postgres):
    """The URL of a database without rows, which tests of this process use one after another."""
    return kept_postgres.url()


@pytest.fixture
def database(request, storage_url):
    if request.node.callspec.params["storage_url"] == "postgresql":
        yield request.getfixturevalue("kept_postgres").opened()
        return
    with closing(connect(storage_url)) as database:
        yield database
