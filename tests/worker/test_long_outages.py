"""
During an outage a trial reports more than its worker may keep in memory.

The trial reports 12 MB, and the limit is 1 MiB. With `STUDYDB_NIGHTLY=1` these are 2 GB and 96 MiB.
"""

import os
import sqlite3
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest
from fleet.stage import Stage
from fleet.workers import eventually

from studydb.db import migrate

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
N_STEPS, SIZE = (20_000, 100_000) if NIGHTLY else (1_200, 10_000)
MEMORY_BYTES = 96 << 20 if NIGHTLY else 1 << 20
PEAK_LIMIT_BYTES = 256e6
PATIENCE_S = 1500.0 if NIGHTLY else 120.0

_RUN = """
import sys
from studydb.lease.room import Room
from studydb.worker.worker_options import WorkerOptions
from studydb.worker.supervisor import run_worker
Room.__init__.__kwdefaults__["memory_bytes"] = int(sys.argv[3])
options = WorkerOptions(storage=sys.argv[1], study=sys.argv[2], say=print, patience_s=3000.0)
sys.exit(run_worker(options))
"""


@contextmanager
def peak_memory(worker):
    """Measure the worker's memory until the block ends; yield a list with the peak in bytes."""
    process, over, peak = psutil.Process(worker.pid), threading.Event(), [0]

    def look():
        while not over.wait(0.1):
            try:
                peak[0] = max(peak[0], process.memory_info().rss)
            except psutil.NoSuchProcess:
                return

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


@contextmanager
def outage(stage, server):
    """Stop the server until the block ends; if `server` is None, lock the SQLite file instead."""
    if server is not None:
        server.stop("immediate")
        yield
        server.start()
        stage.study.database.close()  # the test's connections died with the server
        return
    locking = sqlite3.connect(stage.storage.removeprefix("sqlite:///"), isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    yield
    locking.execute("ROLLBACK")
    locking.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request):
    """A storage URL and its server, which the test can stop; for SQLite the server is None."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_url"), None
    server = request.getfixturevalue("crashable_postgres")
    migrate.upgrade(server.url())
    return server.url(), server


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
def test_results_reported_in_an_outage_are_stored_and_use_bounded_memory(storage, tmp_path):
    url, server = storage
    with Stage(url, tmp_path) as stage:
        stage.create("outage:train", space={"n_steps": N_STEPS, "size": SIZE})
        command = [sys.executable, "-c", _RUN, url, stage.study.name, str(MEMORY_BYTES)]
        worker = stage.fleet.launch(command)
        stage.await_result()

        with peak_memory(worker) as peak:
            with outage(stage, server):
                stage.open_gate("away")
                eventually((tmp_path / "reported").exists, PATIENCE_S)
                assert psutil.Process(worker.pid).memory_info().rss < PEAK_LIMIT_BYTES
            stage.open_gate("back")
            assert worker.exit_code(PATIENCE_S) == 0, worker.output()

        assert peak[0] < PEAK_LIMIT_BYTES
        assert stage.trial().reason == "COMPLETED"
        assert stage.trial().attempt == 1
        assert stage.steps() == list(range(1, N_STEPS + 1))
        assert "cannot be written" not in worker.output()
