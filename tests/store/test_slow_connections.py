"""A request that is larger than the sockets' buffers arrives over a slow connection."""

import pytest
from harness.arrange import SimulatedWorker, new_study, rows
from harness.slow_link import slow_link

from studydb.operations.save import save

SIZE = 15 << 20
RATE = 12e6
"""
Bytes per second. Sending the checkpoint takes 1.3 s. The client waits in the driver's loop for
0.5 s, and then in the loop of `db/silence.py`.
"""


@pytest.fixture
def database(postgres_url, opened):
    with slow_link(postgres_url, bytes_per_s=RATE) as url:
        yield opened(url, longest_silence=lambda: 5.0)


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_large_checkpoint_is_saved_in_the_database(database):
    run = SimulatedWorker(database, new_study(database)).take()
    run.report(0.5)

    save(database, lease=run.lease, checkpoint=run.checkpoint(), data=bytes(SIZE))

    assert rows(database, "SELECT octet_length(data) FROM checkpoint") == [(SIZE,)]
