"""The supervisor's side of the fork server: starts it, asks it for children, notices their ends."""

import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import studydb
from studydb.child.channel import Channel, FrameError
from studydb.child.job import Job, write_job
from studydb.child.process import begun_with, is_alive, kill_group, process_record, start_of
from studydb.child.server import BRAND, REQUEST, Exited, Forked, Refused, Reply, read_reply
from studydb.domain.records import Process
from studydb.settings import scrubbed_environment
from studydb.worker.cores import thread_limits

# The very studydb that runs here, were it a checkout beside an installed one; then its place goes
# to the end of the path, because Python's own modules come first.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import studydb; "
    "sys.path.append(sys.path.pop(0)); from studydb.child.server import main; main(sys.argv[2:])"
)
# -P: what lies in the working directory must not shadow a module of the server's.
_COMMAND = (sys.executable, "-P", "-c", _START, str(Path(studydb.__file__).parents[1]))
_START_TIMEOUT_S = 60.0
_SEND_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_TICK_S = 0.01


class ForkServerDied(OSError):
    """The fork server is gone, and every child of it with it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """
    How a child's process ended.

    Attributes:
        code: What it exited with, None when a signal ended it.
        signal: The signal that ended it, None when it exited.
    """

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        """For people: "exited with code 3"."""
        if self.signal is None:
            return f"exited with code {self.code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(self.signal).name}"
        return f"was killed by signal {self.signal}"


class ChildProcess:
    """
    The process of one attempt, as its supervisor holds it.

    Attributes:
        channel: Reports and answers (see child/messages.py).
        process: Its facts, for the attempt's row.
    """

    def __init__(self, channel: Channel) -> None:
        """Begin with a channel; the process follows (see `ForkServer.spawn`)."""
        self.channel = channel
        self._process: Process | None = None
        self._refused: OSError | None = None
        self._exit: Exit | None = None
        self._started = threading.Event()
        self._ended = threading.Event()

    @property
    def process(self) -> Process:
        """The facts by which this process is told apart from all others."""
        assert self._process is not None
        return self._process

    @property
    def exit(self) -> Exit | None:
        """How it ended, None while it runs."""
        return self._exit

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end of it and its process group; None when that did not come in time."""
        self._ended.wait(timeout_s)
        return self._exit

    def terminate(self) -> None:
        """SIGTERM to the process alone: its next report raises TrialStopped."""
        if self._exit is None and is_alive(self.process):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to it and its process group."""
        if self._exit is None and is_alive(self.process):
            kill_group(self.process.pid)

    def started(self, pid: int, start: int) -> None:
        """Take note of the process, told by the fork server."""
        self._process = process_record(pid, start)
        self._started.set()

    def refused(self, cause: OSError) -> None:
        """Take note that there will be no process."""
        self._refused = cause
        self._started.set()

    def ended(self, how: Exit) -> None:
        """Take note of the end, told by the fork server."""
        self._exit = how
        self._ended.set()

    def wait_started(self) -> None:
        """Wait until the process exists, or raise why it does not."""
        if not self._started.wait(_START_TIMEOUT_S):
            raise TimeoutError(f"The fork server gave no child within {_START_TIMEOUT_S:g} s.")
        if self._refused is not None:
            raise self._refused

    def abandon(self) -> None:
        """
        End it without a fork server, which has died.

        The kernel ends the child then, where it can, but not what the child started. The pid may
        belong to somebody else by now: then its group is empty, and nothing is killed.
        """
        if self._process is None:
            self.refused(ForkServerDied("The fork server died while it was asked for a child."))
        elif self._exit is None:
            if start_of(self._process.pid) in {None, self._process.started}:
                kill_group(self._process.pid)
            self.ended(Exit(signal=signal.SIGKILL))


class _Server:
    """One process of the fork server; when it dies, another takes its place."""

    def __init__(self, slots: int) -> None:
        ours, theirs = socket.socketpair()
        brand = uuid4().hex
        self._brand = f"{BRAND}={brand}".encode()
        with theirs:
            self._popen = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno()), str(os.getpid())],
                env=scrubbed_environment()
                | thread_limits(os.environ, parts=slots)
                | {BRAND: brand},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        self._numbers = itertools.count(1)
        self._children: dict[int, ChildProcess] = {}
        self._lock = threading.Lock()
        self._dead = False
        self._listener = threading.Thread(
            target=self._listen, args=(Channel(ours),), name="studydb-forkserver", daemon=True
        )
        try:
            self._listener.start()
        except RuntimeError as cause:
            self._popen.kill()
            ours.close()
            raise OSError(errno.EAGAIN, str(cause)) from cause

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def dead(self) -> bool:
        return self._dead

    def spawn(self, job: Job, stdout: int, stderr: int) -> ChildProcess:
        ours, theirs = socket.socketpair()
        child = ChildProcess(Channel(ours, send_timeout_s=_SEND_TIMEOUT_S))
        number = next(self._numbers)
        try:
            with theirs:
                self._ask(number, child, [theirs.fileno(), stdout, stderr])
            child.wait_started()
            self._send(job, child)
        except (FrameError, OSError) as cause:
            child.channel.close()
            if self._popen.poll() is not None:
                raise ForkServerDied("The fork server died while it made a child.") from cause
            raise
        return child

    def _send(self, job: Job, child: ChildProcess) -> None:
        """Send a child its job; one that takes none is ended, and its end says why."""
        try:
            child.channel.send(write_job(job))
        except OSError:
            if self._popen.poll() is not None:
                raise
            child.kill()

    def _ask(self, number: int, child: ChildProcess, descriptors: list[int]) -> None:
        with self._lock:
            if self._dead:
                raise ForkServerDied("The fork server ended; what it printed says why.")
            self._children[number] = child
            try:
                socket.send_fds(self._socket, [REQUEST.pack(number)], descriptors)
            except OSError as cause:
                self._dead = True
                raise ForkServerDied(f"The fork server takes no request: {cause}.") from cause

    def _listen(self, replies: Channel) -> None:
        try:
            while (frame := replies.receive()) is not None:
                self._note(read_reply(frame))
        except (EOFError, OSError, ValueError, KeyError):
            self._mourn()

    def _note(self, reply: Reply) -> None:
        child = self._children[reply.id]
        if isinstance(reply, Forked):
            child.started(reply.pid, reply.started)
            return
        del self._children[reply.id]
        match reply:
            case Refused(error=error, errno=code):
                child.refused(OSError(code, error))
            case Exited(code=code, signal=number):
                child.ended(Exit(code=code, signal=number))

    def _mourn(self) -> None:
        """End what the server can no longer end, and take no more requests."""
        with self._lock:
            self._dead = True
            self._socket.close()
            orphans = list(self._children.values())
            self._children.clear()
        self._popen.kill()
        self._popen.wait()
        for child in orphans:
            child.abandon()
        self._kill_strays()

    def _kill_strays(self) -> None:
        """Kill what children have put into sessions of its own: nobody is left to adopt it."""
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while (pids := begun_with(self._brand)) and time.monotonic() < deadline_s:
            for pid in pids:
                kill_group(pid)
            time.sleep(_TICK_S)

    def close(self) -> None:
        """Have the server kill its children and end; if it does not, do both here."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_CLOSE_TIMEOUT_S)
        if self._popen.returncode is None:
            self._popen.kill()
        self._listener.join()


class ForkServer:
    """
    Gives a supervisor children that cost milliseconds and inherit nothing of it.

    Threads may share it. When the server's process dies its children end, and the next `spawn`
    starts another.
    """

    def __init__(self, *, slots: int = 1) -> None:
        """
        Start nothing yet.

        Args:
            slots: How many children share the cores.
        """
        self._slots = slots
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The server's pid, None before the start."""
        return None if self._server is None else self._server.pid

    def start(self) -> None:
        """
        Start the server, before there is a database connection that it could inherit.

        From the main thread: Linux takes the end of the starting thread for the supervisor's.
        """
        self._living()

    def spawn(self, job: Job, *, stdout: int, stderr: int) -> ChildProcess:
        """
        Start the process of one attempt.

        Args:
            job: What it is to do.
            stdout: A descriptor for its output, to be closed here afterwards.
            stderr: The same for its errors.

        Raises:
            OSError: No process can be started.
            FrameError: The job is too large.
        """
        try:
            return self._living().spawn(job, stdout, stderr)
        except ForkServerDied:
            return self._living().spawn(job, stdout, stderr)

    def _living(self) -> _Server:
        with self._lock:
            if self._closed:
                raise OSError("The fork server was closed.")
            if self._server is None or self._server.dead:
                self._server = _Server(self._slots)
            return self._server

    def close(self) -> None:
        """Kill all children with all that came of them, and end the server."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()
