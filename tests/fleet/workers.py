"""Worker processes of a study: start, watch and kill them with all of their descendants."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil
from harness.proxy import Proxy

from fleet.preloaded import ForkedProcess, preloaded_workers
from studydb.processes import pids_with_environment

TRAINABLES = Path(__file__).parent / "trainables"
"""The working directory of studies whose trainables are test code."""

MARK = "FLEET_MARK"
"""An environment variable by which a scan finds all descendants of a worker, orphans included."""

_TICK_S = 0.02
TEMPLATE = "studydb-imports"


def eventually(
    condition: Callable[[], Any], timeout_s: float = 30.0, *, what: str = "the awaited change"
) -> Any:
    """Wait until the condition returns a true value, and return that value."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(_TICK_S)
    return found


class WorkerProcess:
    """
    One worker: its main process, here called the supervisor, and all processes below it.

    Attributes:
        line: The proxy between this worker and its database; None if there is no proxy.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes] | ForkedProcess,
        *,
        mark: str,
        log: Path,
        line: Proxy | None = None,
    ) -> None:
        self.popen, self.mark, self.log, self.line = popen, mark, log, line
        self.was_killed = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def runs(self) -> bool:
        return self.popen.poll() is None

    def family(self) -> list[psutil.Process]:
        """The worker's live processes: the supervisor and its descendants."""
        return list(_marked(self.mark, self.pid if self.runs else None))

    def processes(self) -> list[psutil.Process]:
        """The same as `family`, but found faster; a forked supervisor (`preloaded`) is left out."""
        found = []
        for pid in pids_with_environment(f"{MARK}={self.mark}".encode()):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def names(self) -> dict[int, str]:
        """The names of the worker's processes by pid, also of those that have left its session."""
        return {one.pid: _name(one) for one in self.processes()}

    def fork_server(self) -> psutil.Process | None:
        """The worker's fork server; None if the worker has none or has ended."""
        return next(iter(self.fork_servers()), None)

    def fork_servers(self) -> list[psutil.Process]:
        """A list with the worker's fork server; empty if the worker has none or has ended."""
        return [one for one in self.family() if _parent(one) == self.pid][:1]

    def children(self) -> list[psutil.Process]:
        server, templates = self.fork_server(), {one.pid for one in self.templates()}
        parents = templates | ({server.pid} if server is not None else set())
        family = [one for one in self.family() if one.pid not in templates]
        return [one for one in family if _parent(one) in parents]

    def commands(self) -> list[psutil.Process]:
        """The processes that the worker's children have started."""
        return self._below(self.children())

    def programs(self) -> list[psutil.Process]:
        """The Python programs that commands have started."""
        return [one for one in self._below(self.commands()) if _name(one).startswith("python")]

    def _below(self, processes: list[psutil.Process]) -> list[psutil.Process]:
        parents = {one.pid for one in processes}
        return [one for one in self.family() if _parent(one) in parents]

    def templates(self) -> list[psutil.Process]:
        """The worker's templates: processes that have imported the trainable."""
        server, found = self.fork_server(), []
        for process in self.family():
            with suppress(psutil.Error):
                if server and process.ppid() == server.pid and process.name() == TEMPLATE:
                    found.append(process)
        return found

    def send(self, number: int) -> None:
        """Signal the supervisor alone."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the supervisor alone, wait until it has ended, and close the worker's proxy."""
        self.was_killed = True
        self.popen.kill()
        self.popen.wait()
        if self.line is not None:
            self.line.close()

    def freeze(self) -> None:
        """SIGSTOP all of the worker's processes, as if its host fell asleep."""
        self.send(signal.SIGSTOP)  # so that the supervisor starts no process during the scan
        _signal_all(self.family(), signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT all of the worker's processes."""
        _signal_all(self.family(), signal.SIGCONT)

    def end(self) -> None:
        self.kill()
        while family := self.family():
            _signal_all(family, signal.SIGKILL)
            psutil.wait_procs(family, timeout=1.0)

    def exit_code(self, timeout_s: float = 30.0) -> int:
        return self.popen.wait(timeout_s)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Fleet:
    """
    The workers of one study; leaving the `with` block kills all of their processes.

    Args:
        directory: The workers' working directory, which also holds a log file of each worker.
        lines: Whether each worker that is not forked connects to PostgreSQL through its own proxy.
        preloaded: Whether workers are forked from a process that has imported studydb.
        options: Command-line options of every worker: `lease=5` for `--lease 5`.
    """

    def __init__(
        self,
        storage: str,
        study: str,
        directory: Path,
        *,
        lines: bool = False,
        preloaded: bool = False,
        **options: Any,
    ) -> None:
        self.storage, self.study, self.directory = storage, study, directory
        self._lines, self._preloaded = lines, preloaded
        self.options = options
        self.workers: list[WorkerProcess] = []

    def start(
        self,
        *,
        environment: dict[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WorkerProcess:
        """
        Start a worker.

        Args:
            environment: Variables that the worker gets besides those of this process. A worker
                that gets such variables is not forked, even if `preloaded` is true.
            constants: Values that replace constants of the package, as in `PreloadedWorkers.start`.
            options: Command-line options besides those of the fleet.
        """
        arguments = ["worker", *_arguments({"study": self.study, **self.options, **options})]
        if self._preloaded and environment is None:
            mark, log = uuid4().hex, self._next_log()
            forked = preloaded_workers().start(
                arguments,
                cwd=self.directory,
                environment=self._environment(mark),
                log=log,
                constants=constants or {},
            )
            self.workers.append(WorkerProcess(forked, mark=mark, log=log))
            return self.workers[-1]
        assert not constants, "only a preloaded worker without `environment` takes constants"
        command = [sys.executable, "-m", "studydb", *arguments]
        return self.launch(command, environment=environment)

    def launch(
        self, command: list[str], *, environment: dict[str, str] | None = None
    ) -> WorkerProcess:
        mark, log = uuid4().hex, self._next_log()
        line = Proxy(self.storage) if self._lines else None
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                cwd=self.directory,
                env={
                    **self._environment(mark),
                    **({"STUDYDB_STORAGE": line.url()} if line else {}),
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.workers.append(WorkerProcess(popen, mark=mark, log=log, line=line))
        return self.workers[-1]

    def _next_log(self) -> Path:
        return self.directory / f"worker-{len(self.workers)}.log"

    def _environment(self, mark: str) -> dict[str, str]:
        own = {"STUDYDB_STORAGE": self.storage, "PYTHONUNBUFFERED": "1", MARK: mark}
        return {**os.environ, **own}

    @property
    def running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.runs]

    def exit_codes(self, timeout_s: float = 60.0) -> list[int]:
        """Wait until all workers have ended; return the codes of those that were not killed."""
        deadline_s = time.monotonic() + timeout_s
        return [
            worker.exit_code(max(0.0, deadline_s - time.monotonic()))
            for worker in self.workers
            if not worker.was_killed
        ]

    def output(self) -> str:
        """What all workers have printed, for the message of an assertion."""
        return "\n".join(f"{worker.log.name}:\n{worker.output()}" for worker in self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()


def _arguments(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        yield from [flag] if value is True else [flag, str(value)]


def _marked(mark: str, supervisor: int | None) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            marked = process.pid == supervisor or process.environ().get(MARK) == mark
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _parent(process: psutil.Process) -> int | None:
    with suppress(psutil.Error):
        return process.ppid()
    return None


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return ""


def _signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
