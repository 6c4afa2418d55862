"""
Workers that start in a third of the usual time: a process that has imported studydb forks them.

`PreloadedWorkers` starts that process. The process forks a worker for each line of its input, and
prints each worker's pid and exit code. A forked worker has its own environment, directory, output,
session and signal handlers. It starts no interpreter and imports few modules of studydb anew.
`run_studydb` runs any other command in such a fork.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, NoReturn

TESTS = Path(__file__).parents[1]


class ForkedProcess:
    """A forked worker, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, parent: "PreloadedWorkers", pid: int) -> None:
        self._parent, self.pid = parent, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._parent.read_exits(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = time.monotonic() + (3600.0 if timeout is None else timeout)
        while (code := self.poll()) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
            self._parent.read_exits(left_s)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PreloadedWorkers:
    """The process that forks workers; all tests of a pytest process share it."""

    def __init__(self) -> None:
        self._running: dict[int, ForkedProcess] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from fleet.preloaded import serve; serve()"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: dict[str, str],
        log: Path,
        constants: Mapping[str, Any],
    ) -> ForkedProcess:
        """
        Fork a worker that runs `studydb` with these arguments.

        Args:
            constants: New values of studydb's constants, by names such as
                "worker.host.START_PAUSES_S".
        """
        request = {
            "arguments": list(arguments),
            "constants": dict(constants),
            "cwd": str(cwd),
            "environment": environment,
            "log": str(log),
        }
        log.touch()
        _send(self._process.stdin, request)
        while (pid := self._read().get("pid")) is None:
            pass
        # `_read` has already removed the entry of an earlier worker that had this pid.
        forked = self._running[pid] = ForkedProcess(self, pid)
        return forked

    def read_exits(self, timeout_s: float) -> None:
        """Record the exits of workers; wait at most `timeout_s` for the first exit."""
        while select.select([self._process.stdout], [], [], timeout_s)[0]:
            self._read()
            timeout_s = 0.0

    def close(self) -> None:
        """End the process that forks; the forked workers continue."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()

    def _read(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = _line_of(self._process.stdout.fileno())
        assert line, "the process that forks workers has ended"
        message: dict[str, int] = json.loads(line)
        if "exited" in message:
            self._running.pop(message["exited"]).returncode = message["code"]
        return message


_started: list[PreloadedWorkers] = []


def preloaded_workers() -> PreloadedWorkers:
    """Return this process's `PreloadedWorkers`, started at the first call."""
    if not _started:
        _started.append(PreloadedWorkers())
        atexit.register(_started[0].close)
    return _started[0]


def run_studydb(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: dict[str, str],
    constants: Mapping[str, Any] | None = None,
) -> tuple[int, str]:
    """
    Run a `studydb` command in a fork, and return its exit code and all that it printed.

    Args:
        constants: New values of studydb constants by name; see `PreloadedWorkers.start`.
    """
    with NamedTemporaryFile() as log:
        forked = preloaded_workers().start(
            arguments,
            cwd=cwd,
            environment=environment,
            log=Path(log.name),
            constants=constants or {},
        )
        return forked.wait(120), Path(log.name).read_text(errors="replace")


def serve() -> None:
    """
    Fork a worker for each line of standard input; exit at the end of the input.

    `gc.freeze` keeps the garbage collector from visiting the objects of the imported modules.
    Otherwise each forked worker would copy all pages of these objects at its exit, and the exit
    would take 240 ms of CPU time instead of 45 ms.
    """
    preload()
    compile_statements()
    gc.collect()
    gc.freeze()
    wake_up, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, wake_up], [], [])
        if wake_up in ready:
            os.read(wake_up, 4096)
            _report_exits()
        if 0 in ready:
            line = _line_of(0)
            if not line:
                os._exit(0)
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _run(request)
            _send(sys.stdout, {"pid": pid})


def preload() -> None:
    import studydb.cli.worker  # noqa: PLC0415
    import studydb.worker.supervisor  # noqa: F401, PLC0415


def compile_statements() -> None:
    """Compile the constant statements for SQLite and PostgreSQL, so that no fork compiles them."""
    from studydb.db import Chain, Database, Prepared  # noqa: PLC0415
    from studydb.db.urls import read_url  # noqa: PLC0415

    sqlite = Database(read_url("sqlite:///none.db")).engine.dialect
    postgresql = Database(read_url("postgresql:///none")).engine.dialect
    modules = [module for name, module in sys.modules.items() if name.startswith("studydb.store.")]
    for statement in [value for module in modules for value in vars(module).values()]:
        if isinstance(statement, Prepared):
            statement.compiled(sqlite)
            statement.compiled(postgresql)
        elif isinstance(statement, Chain):
            statement.steps(sqlite)
            statement.whole(postgresql, durable=True)


def _report_exits() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _send(sys.stdout, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _run(request: dict[str, Any]) -> NoReturn:
    """Become a worker; exit handlers run at the end, as in a process that was not forked."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.path.remove("")
    sys.argv = ["studydb", *request["arguments"]]

    for name, value in request["constants"].items():
        module, _, constant = f"studydb.{name}".rpartition(".")
        assert hasattr(importlib.import_module(module), constant), name
        setattr(importlib.import_module(module), constant, value)

    from studydb.__main__ import main  # noqa: PLC0415

    main(request["arguments"])


def _line_of(descriptor: int) -> bytes:
    """Read one line without a buffer, so that `select` sees whether another line has arrived."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            return b""
        line += byte
    return line


def _send(stream: IO[str] | None, message: dict[str, Any]) -> None:
    assert stream is not None
    stream.write(json.dumps(message) + "\n")
    stream.flush()
