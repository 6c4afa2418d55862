"""
A real PgBouncer in transaction mode, in front of the server that the tests use.

It comes from the system's packages (Debian: pgbouncer). Where it is absent the tests that go
through it are deselected.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

START_TIMEOUT_S = 20.0
PORT = 6432

_NAMES = ("host", "hostaddr", "port", "user", "password")

_CONFIGURATION = """
[databases]
* = {server}

[pgbouncer]
pool_mode = transaction
auth_type = any
unix_socket_dir = {directory}
listen_addr =
listen_port = {port}
max_client_conn = 1000
default_pool_size = 50
server_idle_timeout = 5
logfile = {directory}/log
"""


def program() -> str | None:
    """Where PgBouncer is, None where it is not installed; Debian has it in /usr/sbin."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return shutil.which("pgbouncer", path=path)


@contextmanager
def running(server_url: str) -> Iterator[Path]:
    """Run PgBouncer in front of a server; yields the directory of its socket."""
    named = program()
    assert named is not None
    with tempfile.TemporaryDirectory(prefix="studydb-pgbouncer-") as place:
        directory = Path(place)
        account = _account(directory)
        _configure(directory, server_url)
        popen = subprocess.Popen(
            [named, "-q", directory / "ini"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            start_new_session=True,
            **account,
        )
        try:
            _await_answer(directory, popen)
            yield directory
        finally:
            popen.kill()
            popen.wait()


def url_through(directory: Path, url: str) -> str:
    """The URL by which studydb reaches a database of the server through PgBouncer."""
    given = conninfo_to_dict(url)
    name, user = quote(str(given["dbname"])), quote(str(given.get("user", "postgres")))
    return (
        f"postgresql://{user}@/{name}?host={quote(str(directory))}&port={PORT}&pooler=transaction"
    )


def _account(directory: Path) -> dict[str, int]:
    """PgBouncer refuses root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _configure(directory: Path, server_url: str) -> None:
    given = conninfo_to_dict(server_url)
    server = make_conninfo(**{name: given[name] for name in _NAMES if name in given})
    text = _CONFIGURATION.format(server=server, directory=directory, port=PORT)
    (directory / "ini").write_text(text)


def _await_answer(directory: Path, popen: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(
                host=str(directory),
                port=PORT,
                dbname="postgres",
                user="postgres",
                connect_timeout=5,
            ).close()
        except psycopg.OperationalError as error:
            if popen.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.02)
                continue
            raise RuntimeError("PgBouncer did not start.") from error
        return


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: str) -> Iterator[Path]:
    """The directory of the socket of a PgBouncer that all tests of this process share."""
    with running(postgres_server) as directory:
        yield directory


@pytest.fixture
def pooled_url(pgbouncer: Path, postgres_url: str) -> str:
    """A fresh, migrated PostgreSQL database, reached through PgBouncer."""
    return url_through(pgbouncer, postgres_url)


@pytest.fixture(
    params=["sqlite", "postgresql", pytest.param("pgbouncer", marks=pytest.mark.pgbouncer)]
)
def storage_url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated database: of either kind, and through PgBouncer."""
    name = {"sqlite": "sqlite_url", "postgresql": "postgres_url", "pgbouncer": "pooled_url"}
    return str(request.getfixturevalue(name[request.param]))
