"""Child processes as the worker sees them: how they are requested, and how they end."""

import errno
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from studydb.child.channel import Channel, Frame
from studydb.child.forking import (
    REQUEST,
    ChildKind,
    Exited,
    Forked,
    Outdated,
    Refused,
    Reply,
    read_reply,
)
from studydb.child.messages import NextAttempt, write
from studydb.domain.records import Process
from studydb.processes import exit_text, is_alive, kill_group, process_record, start_of

_START_TIMEOUT_S = 60.0
_SEND_TIMEOUT_S = 30.0
_KILL_TIMEOUT_S = 2.0

_numbers = itertools.count(1)
"""
Numbers of requests, unique in a worker. The environment variable `CHILD_ID_VARIABLE` of a child
holds the number of the request that started the child.
"""


class ForkerDied(OSError):
    """The fork server or template that was asked to fork has ended, and so have its children."""


class TemplateOutdated(Exception):
    """The template refuses to fork, because it must be replaced."""


class Exit(Struct, frozen=True):
    """How a child's process ended: it exited with `code`, or `signal` killed it."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exited with code {self.code}"
        return exit_text(-self.signal)


class ChildProcess:
    """
    A child process as its worker sees it.

    Attributes:
        channel: Carries the messages to and from the process; for attempts, see child/messages.py.
        exit: How the process ended; None while it runs.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.exit: Exit | None = None
        self._process: Process | None = None
        self._refused: OSError | TemplateOutdated | None = None
        self._started = threading.Event()
        self._ended = threading.Event()

    @property
    def process(self) -> Process:
        """The host, pid and start time, which identify the process."""
        assert self._process is not None
        return self._process

    def take(self, first: Frame, *, stdout: int, stderr: int) -> None:
        """
        Have the process, which waits after an attempt, run another attempt over a new channel.

        Nothing that the process still sends over the earlier channel is read.

        Raises:
            OSError: The process has ended or does not read; it must be killed.
            FrameError: The message is too large; the process must be killed.
        """
        ours, theirs = socket.socketpair()
        earlier, self.channel = self.channel, Channel(ours, send_timeout_s=_SEND_TIMEOUT_S)
        try:
            with theirs:
                earlier.send(write(NextAttempt()), descriptors=[theirs.fileno(), stdout, stderr])
        finally:
            earlier.close()
        self.channel.send(first)

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait until the process and its group have ended; return None after the timeout."""
        self._ended.wait(timeout_s)
        return self.exit

    def terminate(self) -> None:
        """Send SIGTERM to the child alone; its next report raises TrialStopped."""
        if self.exit is None and is_alive(self.process):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        if self.exit is None and is_alive(self.process):
            kill_group(self.process.pid)

    def started(self, pid: int, start: int) -> None:
        """Record the process that the fork server or a template has started."""
        self._process = process_record(pid, start)
        self._started.set()

    def refused(self, cause: OSError | TemplateOutdated) -> None:
        """Record why there will be no process."""
        self._refused = cause
        self._started.set()

    def ended(self, how: Exit) -> None:
        """Record the end that the fork server or the template has reported."""
        self.exit = how
        self._ended.set()

    def wait_started(self) -> None:
        """
        Wait until the process exists.

        Raises:
            TimeoutError: The fork server or template did not answer within 60 s.
            OSError: No process can be started.
            TemplateOutdated: The template must be replaced.
        """
        if not self._started.wait(_START_TIMEOUT_S):
            raise TimeoutError(f"The forking process did not answer within {_START_TIMEOUT_S:g} s.")
        if self._refused is not None:
            raise self._refused

    def abandon(self) -> None:
        """
        End the child and its process group, because the fork server or template has died.

        Linux kills the child with its parent, but not the processes that the child has started. If
        the child's pid now belongs to another process, nothing is killed. If no child was forked
        yet, `wait_started` raises ForkerDied.
        """
        if self._process is None:
            self.refused(ForkerDied("The forking process died before it started the child."))
        elif self.exit is None:
            if start_of(self._process.pid) in {None, self._process.started}:
                kill_group(self._process.pid)
            self.ended(Exit(signal=signal.SIGKILL))


class Forker:
    """
    Asks a server (the fork server or a template) for children; threads may share a Forker.

    Args:
        connection: The socket to the server. The Forker closes it when no more replies come.
        is_gone: Whether the server has ended.
        on_death: Called by the listening thread when no more replies come; kills the server if it
            still runs, and reaps it.

    Attributes:
        dead: Whether the server has ended or can no longer be used; its children end with it.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        is_gone: Callable[[], bool],
        on_death: Callable[[], None],
    ) -> None:
        self.dead = False
        self._socket = connection
        self._is_gone, self._on_death = is_gone, on_death
        self._children: dict[int, ChildProcess] = {}
        self._lock = threading.Lock()
        self._listener = threading.Thread(
            target=self._listen, args=(Channel(connection),), name="studydb-forker", daemon=True
        )
        try:
            self._listener.start()
        except RuntimeError as cause:  # this host allows no more threads
            connection.close()
            raise OSError(errno.EAGAIN, str(cause)) from cause

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not self._children

    def spawn(
        self,
        kind: ChildKind,
        make_first: Callable[[], Frame],
        *,
        stdout: int,
        stderr: int,
        descriptors: Sequence[int] = (),
    ) -> ChildProcess:
        """
        Start a child, and send the first message to the child.

        Args:
            make_first: Makes the first message, while the child starts. If it raises an exception,
                the child is killed, and the exception is raised here.
            descriptors: More descriptors that the child and its programs keep open.

        Raises:
            ForkerDied: The server has ended.
            TemplateOutdated: The server is a template that must be replaced.
            OSError: No process can be started.
            FrameError: The message is too large.
        """
        ours, theirs = socket.socketpair()
        child = ChildProcess(Channel(ours, send_timeout_s=_SEND_TIMEOUT_S))
        try:
            with theirs:
                self._ask(child, kind, [theirs.fileno(), stdout, stderr, *descriptors])
            first = _made(make_first, child)
            child.wait_started()
            self._send_first(child, first)
        except BaseException as cause:
            child.channel.close()
            if isinstance(cause, OSError) and self._is_gone():
                raise ForkerDied("The forking process died before the child began.") from cause
            raise
        return child

    def _send_first(self, child: ChildProcess, first: Frame) -> None:
        """Send a child its first message; kill a child that does not read the message."""
        try:
            child.channel.send(first)
        except OSError:
            if self._is_gone():
                raise
            child.kill()

    def _ask(self, child: ChildProcess, kind: ChildKind, descriptors: list[int]) -> None:
        with self._lock:
            if self.dead:
                raise ForkerDied("The forking process has ended; its output says why.")
            number = next(_numbers)
            self._children[number] = child
            try:
                request = REQUEST.pack(number, kind, len(descriptors))
                socket.send_fds(self._socket, [request], descriptors)
            except OSError as cause:
                self.dead = True
                raise ForkerDied(f"The forking process cannot be reached: {cause}.") from cause

    def _listen(self, replies: Channel) -> None:
        try:
            while (frame := replies.receive()) is not None:
                self._note(read_reply(frame))
        except (EOFError, OSError, ValueError, KeyError):
            self._end()

    def _note(self, reply: Reply) -> None:
        child = self._children[reply.id]
        if isinstance(reply, Forked):
            child.started(reply.pid, reply.started)
            return
        with self._lock:
            del self._children[reply.id]
        match reply:
            case Refused(error=error, errno=code):
                child.refused(OSError(code, error))
            case Outdated(reason=reason):
                child.refused(TemplateOutdated(reason))
            case Exited(code=code, signal=number):
                child.ended(Exit(code=code, signal=number))

    def _end(self) -> None:
        with self._lock:
            self.dead = True
            self._socket.close()
            orphans = list(self._children.values())
            self._children.clear()
        for child in orphans:
            child.abandon()
        self._on_death()

    def shut(self) -> None:
        """Have the server kill its children and exit."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        """Wait until the server is reaped."""
        self._listener.join()


def _made(make_first: Callable[[], Frame], child: ChildProcess) -> Frame:
    """Make a child's first message; if that fails, kill the child as soon as it exists."""
    try:
        return make_first()
    except BaseException:
        try:
            child.wait_started()
        except TimeoutError:
            raise  # the forking process hangs; if it is a template, the caller kills it
        except (OSError, TemplateOutdated):
            pass  # no child has started
        else:
            child.kill()
            child.wait(_KILL_TIMEOUT_S)
        raise
