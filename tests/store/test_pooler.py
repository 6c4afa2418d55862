"""The PgBouncer of the tests pools transactions: its clients share connections to the server."""

import pytest
from harness.arrange import rows


@pytest.mark.pgbouncer
def test_two_clients_of_the_pooler_share_connections_to_the_server(pooled_url, opened):
    one, other = opened(pooled_url), opened(pooled_url)

    pids = [
        (rows(each, "SELECT pg_backend_pid()")[0], each) for _ in range(5) for each in (one, other)
    ]

    assert {pid for pid, each in pids if each is one} & {pid for pid, each in pids if each is other}
