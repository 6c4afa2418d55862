"""Here every test that runs on both databases runs through a transaction pooler, too."""

from datetime import UTC, datetime

import pytest
from harness.pooler import pgbouncer, pooled_url, storage_url

from studydb.db import connect

__all__ = ["pgbouncer", "pooled_url", "storage_url"]


@pytest.fixture
def connections(postgres_url):
    """A connection on which a COMMIT is held back, and another one on which the call is sent again."""
    slow = connect(f"{postgres_url}&pooler=transaction")  # sends COMMIT as a message
    fresh = connect(postgres_url)
    slow.clock = fresh.clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    yield slow, fresh
    slow.close()
    fresh.close()
