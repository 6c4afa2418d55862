"""What "pgbouncer" in the name of a test stands for."""

import pytest

from studydb.db import connect

BACKEND = "SELECT pg_backend_pid()"


@pytest.mark.pgbouncer
def test_two_clients_of_the_pooler_share_a_connection_to_the_server(pooled_url):
    one, other = connect(pooled_url), connect(pooled_url)
    backends = []

    for database in (one, other, one):
        with database.begin() as txn:
            backends += [row[0] for row in txn.raw(BACKEND)[1]]

    assert len(set(backends)) == 1
    one.close()
    other.close()
