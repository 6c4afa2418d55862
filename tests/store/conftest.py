"""Tests here that run on both databases also run through PgBouncer, if it is installed."""

from contextlib import ExitStack, closing

import pytest
from harness.pooler import pgbouncer, pooled_url, storage_url

from studydb.db import connect

__all__ = ["pgbouncer", "pooled_url", "storage_url"]


@pytest.fixture
def opened():
    """A function like `connect`; the databases that it opens are closed after the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(connect(*args, **options)))
