"""Fixtures. Each test here that runs on both databases also runs through PgBouncer."""

from datetime import UTC, datetime

import pytest
from harness.arrange import SimulatedWorker, new_study
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
    """The attempt of the study's first trial."""
    return worker.take()


@pytest.fixture
def connections(postgres_url):
    """Two clients of one database. A test sends a call over the first, then over the second."""
    # Behind a pooler, even a single statement has a COMMIT, at which a test can hold the call.
    slow = connect(f"{postgres_url}&pooler=transaction")
    fresh = connect(postgres_url)
    slow.clock = fresh.clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    yield slow, fresh
    slow.close()
    fresh.close()
