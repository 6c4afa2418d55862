"""What "pgbouncer" in the name of a test stands for."""

from contextlib import closing

import pytest

from studydb.db import Database, connect

BACKEND = "SELECT pg_backend_pid()"


@pytest.mark.pgbouncer
def test_two_clients_of_the_pooler_share_connections_to_the_server(pooled_url):
    with closing(connect(pooled_url)) as one, closing(connect(pooled_url)) as other:
        served = [(_backend(one), _backend(other)) for _ in range(5)]

    assert {backend for backend, _ in served} & {backend for _, backend in served}


def _backend(database: Database) -> int:
    with database.begin() as txn:
        return txn.raw(BACKEND)[1][0][0]
