"""Hooks and fixtures for all tests, such as a new SQLite or PostgreSQL database for each test."""

import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the folder of `harness`, `fleet`

from harness import nightly, pooler, postgres
from harness.shared_once import shared

from studydb.db import Database, connect, migrate

# With the default thresholds, a quarter of the tests' time is garbage collection.
gc.set_threshold(20_000, 50, 100)


class FakeClock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this run leaves out (README.md); if PgBouncer is missing, also its tests."""
    left_out = nightly.left_out(items, config)
    if pooler.program() is None:
        left_out |= {item for item in items if item.get_closest_marker("pgbouncer")}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of collected tests, which live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def isolated_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """
    Hide the developer's settings, storage and signing key from tests; limit OpenMP to one thread.

    Tests get a new home. Variables that begin with `PG` stay if STUDYDB_TEST_DSN is set.
    """
    home = tmp_path_factory.mktemp("home")
    foreign = (
        ("STUDYDB_", "XDG_") if postgres.DSN_VARIABLE in os.environ else ("STUDYDB_", "XDG_", "PG")
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(foreign)]:
            if name != postgres.DSN_VARIABLE:
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def handled_signals() -> None:
    """
    Handle SIGINT and SIGHUP if this process ignores them, so that its workers do not ignore them.

    `pytest &` in a shell script ignores SIGINT, and `nohup pytest` ignores SIGHUP. A child inherits
    which signals are ignored, but no handlers.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


_SHARED = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SHARED] = ExitStack()


def pytest_unconfigure(config: pytest.Config) -> None:
    """
    Give back what the processes of this run share.

    For each shared object, the process that made the object waits until no other process uses it.
    No test's time limit counts this wait.
    """
    config.stash[_SHARED].close()


@pytest.fixture(scope="session")
def make_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[ExitStack], str]], str]:
    """Return a function that makes something once for all processes of this run."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def make_once(name: str, make: Callable[[ExitStack], str]) -> str:
        return request.config.stash[_SHARED].enter_context(shared(folder, name, make))

    return make_once


@pytest.fixture(scope="session")
def postgres_server(make_once: Any) -> str:
    """The URL of the server that all tests of this run share."""
    return str(
        make_once("postgresql", lambda stack: stack.enter_context(postgres.server_for_tests()))
    )


@pytest.fixture(scope="session")
def administration(postgres_server: str) -> Iterator[psycopg.Connection[Any]]:
    """The connection that creates and drops the databases of tests."""
    with closing(postgres.connect(postgres_server)) as connection:
        yield connection


@pytest.fixture(scope="session")
def postgres_template(make_once: Any, postgres_server: str) -> str:
    """The name of a database with the newest schema, to copy."""

    def make(stack: ExitStack) -> str:
        name = f"studydb_template_{uuid.uuid4().hex}"
        stack.callback(postgres.drop_database, postgres_server, name)
        migrate.upgrade(postgres.create_database(postgres_server, name))
        return name

    return str(make_once("postgresql-template", make))


@pytest.fixture(scope="session")
def sqlite_template(make_once: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the newest schema, to copy."""

    def make(_stack: ExitStack) -> str:
        path = tmp_path_factory.mktemp("template") / "studydb.db"
        migrate.upgrade(f"sqlite:///{path}")
        # A copy of the file would lack the rows in the WAL.
        assert not path.with_name("studydb.db-wal").exists()
        return str(path)

    return Path(make_once("sqlite-template", make))


@pytest.fixture(scope="session")
def shared_s3_server() -> Iterator[Any]:
    from harness.s3_server import S3Server  # noqa: PLC0415  it takes a second to import

    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3_server(shared_s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An S3 server with an empty bucket, to which this process and its workers have access."""
    from s3fs import S3FileSystem  # noqa: PLC0415  slow to import

    for name, value in shared_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    shared_s3_server.reset()
    return shared_s3_server


@pytest.fixture
def empty_postgres_url(
    postgres_server: str, administration: psycopg.Connection[Any]
) -> Iterator[str]:
    with postgres.temporary_database(postgres_server, connection=administration) as url:
        yield url


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/studydb.db"


@pytest.fixture
def postgres_url(
    postgres_server: str, postgres_template: str, administration: psycopg.Connection[Any]
) -> Iterator[str]:
    with postgres.temporary_database(
        postgres_server, template=postgres_template, connection=administration
    ) as url:
        yield url


@pytest.fixture
def sqlite_url(empty_sqlite_url: str, sqlite_template: Path) -> str:
    shutil.copyfile(sqlite_template, empty_sqlite_url.removeprefix("sqlite:///"))
    return empty_sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def storage_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_storage_url(request: pytest.FixtureRequest) -> str:
    name = "empty_sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def database(storage_url: str) -> Iterator[Database]:
    database = connect(storage_url)
    yield database
    database.close()


@pytest.fixture
def clock(database: Database) -> FakeClock:
    clock = FakeClock()
    database.clock = clock
    return clock


@pytest.fixture
def crashable_postgres() -> Iterator[postgres.PostgresServer]:
    """A running server with fsync, which the test may stop and start."""
    with postgres.PostgresServer(fsync=True) as server:
        yield server
