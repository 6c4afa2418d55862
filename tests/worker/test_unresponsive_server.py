"""If the server is down or does not answer, a worker ends after its patience or at SIGTERM."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet.stage import Stage
from fleet.workers import eventually
from harness import postgres
from harness.proxy import Proxy

from studydb.db import migrate

GRACE_S = 30.0
SHORTEST_TIMEOUT_S, STOPPING_TIMEOUT_S, LATE_TIMEOUT_S = 2.0, 1.5, 1.0
SHORT_TIMEOUTS = {
    "worker.supervisor.SHORTEST_TIMEOUT_S": SHORTEST_TIMEOUT_S,
    "worker.supervisor.STOPPING_TIMEOUT_S": STOPPING_TIMEOUT_S,
    "worker.supervisor.LATE_TIMEOUT_S": LATE_TIMEOUT_S,
}
"""Values for `constants=` of `Stage.start`; no timeout is longer than its default."""


class Standby:
    """
    Makes synchronous COMMITs wait from `remove` to `restore`.

    Meanwhile the server requires a synchronous standby that does not exist.
    """

    def __init__(self, server: postgres.PostgresServer) -> None:
        self._server = server

    def remove(self) -> None:
        self._set("missing")
        with postgres.connect(self._server.url()) as connection:  # wait for the reload
            shown = "SHOW synchronous_standby_names"
            eventually(lambda: connection.execute(shown).fetchone() == ("missing",))

    def restore(self) -> None:
        self._set("")

    def has_waiters(self) -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with postgres.connect(self._server.url()) as connection:
            return connection.execute(waiting).fetchone() != (0,)

    def _set(self, names: str) -> None:
        with postgres.connect(self._server.url()) as connection:
            connection.autocommit = True
            connection.execute("SET synchronous_commit = local")
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.PostgresServer]:
    with postgres.PostgresServer() as server:
        migrate.upgrade(postgres.create_database(server.url(), "template"))
        yield server


@pytest.fixture
def standby(server) -> Iterator[Standby]:
    standby = Standby(server)
    yield standby
    standby.restore()


@pytest.fixture
def stage(server, standby, tmp_path: Path) -> Iterator[Stage]:
    name = f"silent_{tmp_path.name}".lower().replace("-", "_")[:60]
    url = postgres.create_database(server.url(), name, template="template")
    with Stage(url, tmp_path) as stage:
        yield stage
        standby.restore()  # so that no COMMIT waits for the standby when the stage closes


@pytest.mark.nightly
def test_worker_with_a_trial_ends_after_its_patience_if_the_server_is_down(server, stage):
    stage.create("obedient:unhurried")
    worker = stage.start(patience=1.0)
    stage.await_result()

    server.stop("immediate")

    assert worker.exit_code(60.0) == 1
    assert "did not answer for too long" in worker.output()
    server.start()
    stage.study.database.close()  # the test's connections died with the server


@pytest.mark.nightly
def test_worker_ends_after_its_patience_while_the_standby_is_missing(stage, standby):
    stage.create("obedient:unhurried")
    worker = stage.start(patience=1.0, constants=SHORT_TIMEOUTS)
    stage.await_result()

    standby.remove()

    began_s = time.monotonic()
    assert worker.exit_code(60.0) == 1
    assert time.monotonic() - began_s < 8 * SHORTEST_TIMEOUT_S
    assert "synchronous standby" in worker.output()


@pytest.mark.nightly
def test_worker_ends_at_sigterm_while_the_standby_is_missing(stage, standby):
    stage.create("obedient:unhurried")
    worker = stage.start(constants=SHORT_TIMEOUTS)
    stage.await_result()
    standby.remove()
    eventually(standby.has_waiters)

    began_s = time.monotonic()
    worker.send(signal.SIGTERM)

    assert worker.exit_code(GRACE_S + 10) == 143
    assert time.monotonic() - began_s < GRACE_S
    standby.restore()
    eventually(lambda: not standby.has_waiters())
    stage.start()
    stage.await_trial(lambda row: row.attempt == 2)


@pytest.mark.slow
def test_trial_loses_no_step_while_the_standby_is_missing(stage, standby):
    stage.create("obedient:unhurried")
    worker = stage.start(patience=60.0)
    reported = stage.await_result().n_results
    standby.remove()
    eventually(standby.has_waiters)

    standby.restore()
    stage.await_trial(lambda row: row.n_results > reported)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    assert stage.trial().attempt == 1
    assert stage.steps() == list(range(1, stage.trial().last_step + 1))


@pytest.mark.nightly
def test_worker_ends_at_sigterm_while_its_connection_is_frozen(postgres_url, tmp_path):
    with Proxy(postgres_url) as line, Stage(postgres_url, tmp_path) as stage:
        stage.create("obedient:unhurried")
        stage.fleet.storage = line.url()
        worker = stage.start(constants=SHORT_TIMEOUTS)
        stage.await_result()
        line.freeze()

        began_s = time.monotonic()
        worker.send(signal.SIGTERM)

        assert worker.exit_code(GRACE_S + 10) == 143
        assert STOPPING_TIMEOUT_S <= time.monotonic() - began_s < GRACE_S
