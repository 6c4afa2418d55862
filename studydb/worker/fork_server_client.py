"""Start the fork server, ask it for children, and start another server if it dies."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import studydb
from studydb.child.channel import Frame
from studydb.child.forking import SERVER_ID_VARIABLE, ChildKind
from studydb.child.job import Job, write_job
from studydb.domain.records import Process
from studydb.processes import (
    IMPORT_STUDYDB,
    environments_with,
    is_alive,
    is_local,
    kill_group,
    pids_with_environment,
    this_process,
)
from studydb.settings import scrubbed_environment
from studydb.worker.children import ChildProcess, Forker, ForkerDied
from studydb.worker.cores import thread_limits

# A batch system may send the signal of --preempt-signal to all processes. The signal ends a process
# that neither handles nor ignores it. So the server first of all ignores the signal. The worker
# handles the signal, and asks the trials to end.
#
# Before the server imports its other modules, it arranges to die with its worker, because the
# worker may die during these imports.
_START = (
    "import signal, sys; ignored = int(sys.argv[2]); "
    "ignored and signal.signal(ignored, signal.SIG_IGN); "
    + IMPORT_STUDYDB
    + "from studydb.processes import die_with_parent; "
    "die_with_parent(signal.SIGKILL, int(sys.argv[4])); "
    "from studydb.child.fork_server import main; main(sys.argv[3:])"
)
# -P: a file in the working directory must not hide a module that the server imports.
_COMMAND = (sys.executable, "-P", "-c", _START, str(Path(studydb.__file__).parents[1]))
_CLOSE_TIMEOUT_S = 2.0
_TICK_S = 0.01
_STDERR = 2

_BATCH_JOB = "SLURM_JOB_ID"
"""
A variable that Slurm sets anew in each job. A job inherits other variables, such as
`SERVER_ID_VARIABLE`, from the process that has submitted it.
"""


class _Server:
    def __init__(self, slots: int, ignored_signal: int) -> None:
        ours, theirs = socket.socketpair()
        server_id = _new_id()
        self._marked = f"{SERVER_ID_VARIABLE}={server_id}".encode()
        with _not_a_stream(theirs) as theirs:
            self._popen = subprocess.Popen(
                [*_COMMAND, str(ignored_signal), str(theirs.fileno()), str(os.getpid())],
                env=scrubbed_environment()
                | thread_limits(os.environ, parts=slots)
                | {SERVER_ID_VARIABLE: server_id},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if _has_stderr() else subprocess.DEVNULL,
            )
        try:
            self.forker = Forker(ours, is_gone=self._has_ended, on_death=self._on_death)
        except OSError:
            self._popen.kill()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def _has_ended(self) -> bool:
        return self._popen.poll() is not None

    def _on_death(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._kill_strays()

    def _kill_strays(self) -> None:
        """Kill descendants of the server that have left their process group."""
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while (pids := pids_with_environment(self._marked)) and time.monotonic() < deadline_s:
            for pid in pids:
                kill_group(pid)
            time.sleep(_TICK_S)

    def close(self) -> None:
        """Have the server kill its children and exit; kill a server that still runs after 2 s."""
        self.forker.shut()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_CLOSE_TIMEOUT_S)
        if self._popen.returncode is None:
            self._popen.kill()
        self.forker.join()


def _has_stderr() -> bool:
    """
    Whether this process has a stderr that a program can inherit.

    In a program that has closed stderr, a file or socket may have got the stream's number. Python
    opens files and sockets so that programs do not inherit them.
    """
    try:
        return os.get_inheritable(_STDERR)
    except OSError:
        return False


def _not_a_stream(connection: socket.socket) -> socket.socket:
    """Move a socket that has got the number of a closed stream, which a program would replace."""
    if connection.fileno() > _STDERR:
        return connection
    with connection:
        moved = fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
        return socket.socket(fileno=moved)


def _new_id() -> str:
    worker, batch_job = this_process(), os.environ.get(_BATCH_JOB, "")
    identity = (worker.boot_id, worker.pid_namespace, worker.pid, worker.started, batch_job)
    return " ".join(map(str, (uuid4().hex, *identity)))


def _kill_descendants_of_dead_workers() -> None:
    """
    Kill the remaining descendants of this host's dead workers.

    If only the worker dies, its fork server kills all descendants; if only the fork server dies,
    the worker kills them. If both are killed together, a descendant that has made its own process
    group lives on.

    A batch job that a trial has submitted inherits the trial's environment, but may outlive the
    trial's worker. The job's processes are not killed, because their job ID differs from that of
    the worker. This worker, too, may run in a job that a trial has submitted, and not every batch
    system sets a job ID. So processes that have inherited the same ID of a fork server as this
    worker are not killed either.
    """
    found = environments_with(SERVER_ID_VARIABLE)
    own_id = dict(found).get(os.getpid(), {}).get(SERVER_ID_VARIABLE)
    for pid, environment in found:
        server_id = environment[SERVER_ID_VARIABLE]
        if server_id != own_id and _worker_is_dead(server_id, environment.get(_BATCH_JOB)):
            kill_group(pid)


def _worker_is_dead(server_id: str, batch_job: str | None) -> bool:
    """
    Tell whether the worker that `server_id` names is dead.

    The answer is False, too, if `server_id` cannot be read, if the worker ran on another host, or
    if the process that has inherited `server_id` is in another batch job than the worker was.
    """
    match server_id.split(" "):
        case [_, boot, namespace, pid, started, job] if pid.isdecimal() and started.isdecimal():
            worker = Process("", boot, namespace, int(pid), int(started))
            return (batch_job or job) == job and is_local(worker) and not is_alive(worker)
    return False


class ForkServer:
    """
    Starts children in milliseconds; threads may share the object.

    Children inherit no memory and no connection of the worker. If the server's process dies,
    its children end, and the next `spawn` starts another server.

    Args:
        slots: The number of children that share the cores.
        ignored_signal: A signal that the server and its children ignore; 0 for none.
    """

    def __init__(self, *, slots: int = 1, ignored_signal: int = 0) -> None:
        self._slots, self._ignored_signal = slots, ignored_signal
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def start(self) -> None:
        """
        Kill the remaining descendants of this host's dead workers, then start the server.

        Call this before the worker opens its database connections, and from the main thread: if the
        thread that started the server ends while the server still imports its modules, Linux kills
        the server.
        """
        _kill_descendants_of_dead_workers()
        self._running_server()

    def spawn(
        self,
        make_job: Callable[[], Job],
        *,
        stdout: int,
        stderr: int,
        descriptors: Sequence[int] = (),
    ) -> ChildProcess:
        """
        Start the process of one attempt; the process imports the trainable itself.

        Args:
            make_job: Makes the job while the process starts. It may be called several times, and
                must return the same job each time.
            stdout, stderr: Descriptors for the process's output; the caller closes them.
            descriptors: The locks of the attempt's devices, which the process inherits.

        Raises:
            OSError: No process can be started.
            FrameError: The job is too large.
        """
        return self.fork(
            ChildKind.ATTEMPT,
            lambda: write_job(make_job()),
            stdout=stdout,
            stderr=stderr,
            descriptors=descriptors,
        )

    def fork(
        self, kind: ChildKind, make_first: Callable[[], Frame], **descriptors: Any
    ) -> ChildProcess:
        """
        Start a child of any kind; if the server has died, try once more with a new server.

        `Forker.spawn` and `spawn` describe the arguments and the errors.
        """
        try:
            return self._running_server().forker.spawn(kind, make_first, **descriptors)
        except ForkerDied:
            return self._running_server().forker.spawn(kind, make_first, **descriptors)

    def _running_server(self) -> _Server:
        with self._lock:
            if self._closed:
                raise OSError("The fork server has been closed.")
            if self._server is None or self._server.forker.dead:
                self._server = _Server(self._slots, self._ignored_signal)
            return self._server

    def close(self) -> None:
        """End the server, its children and their descendants."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()
