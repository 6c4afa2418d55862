"""
A real PgBouncer in transaction mode, in front of the server that the tests use.

PgBouncer comes from the system's packages (Debian: pgbouncer). If it is not installed, the tests
that need it are deselected.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness import postgres

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
    """The path of PgBouncer, None if it is not installed; Debian installs it in /usr/sbin."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return shutil.which("pgbouncer", path=path)


@contextmanager
def running(server_url: str) -> Iterator[Path]:
    """Run PgBouncer in front of a server; yield the directory of PgBouncer's socket."""
    path = program()
    assert path is not None
    with tempfile.TemporaryDirectory(prefix="studydb-pgbouncer-") as name:
        directory = Path(name)
        _configure(directory, server_url)
        popen = subprocess.Popen(
            [path, "-q", directory / "ini"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            start_new_session=True,
            **postgres.unprivileged_account(directory),
        )
        try:
            url = make_conninfo(host=str(directory), port=PORT, dbname="postgres", user="postgres")
            if not postgres.await_connection(popen, url):
                raise RuntimeError("PgBouncer did not start.")
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


def _configure(directory: Path, server_url: str) -> None:
    given = conninfo_to_dict(server_url)
    server = make_conninfo(**{name: given[name] for name in _NAMES if name in given})
    text = _CONFIGURATION.format(server=server, directory=directory, port=PORT)
    (directory / "ini").write_text(text)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: str) -> Iterator[Path]:
    """The directory of the socket of a PgBouncer that all tests of this process share."""
    with running(postgres_server) as directory:
        yield directory


@pytest.fixture
def pooled_url(pgbouncer: Path, postgres_url: str) -> str:
    return url_through(pgbouncer, postgres_url)


@pytest.fixture(
    params=["sqlite", "postgresql", pytest.param("pgbouncer", marks=pytest.mark.pgbouncer)]
)
def storage_url(request: pytest.FixtureRequest) -> str:
    name = {"sqlite": "sqlite_url", "postgresql": "postgres_url", "pgbouncer": "pooled_url"}
    return str(request.getfixturevalue(name[request.param]))
