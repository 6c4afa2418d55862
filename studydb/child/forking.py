"""
Fork children on request, for the fork server and for templates.

A request consists of a number, a kind and a count, and comes with as many descriptors as the count
says. The first three are the child's channel, stdout and stderr. Any others are the locks of the
child's devices. The child keeps the locks open. A program that the child starts with
`close_fds=False`, such as a command, keeps them open, too. The forking process itself closes the
request's descriptors after the fork. The replies are frames: `Forked`, `Refused` or `Outdated`, and
`Exited` once a child has ended and its process group was killed. When the parent of the forking
process dies, all descendants of the forking process are killed.
"""

import errno
import os
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NoReturn

from msgspec import Struct, msgpack

from studydb.child.channel import Channel, Frame, decode
from studydb.processes import (
    adopt_orphans,
    children_of,
    die_with_parent,
    environment_of,
    fork,
    kill_group,
    reap,
    start_of,
)

REQUEST = struct.Struct("!QBB")
"""The number of a request, the kind of the child, and how many descriptors come with it."""

LEAST_DESCRIPTORS = 3
"""The least number of descriptors: the child's channel, stdout and stderr."""

MOST_DESCRIPTORS = 250
"""The most descriptors of a request; Linux passes 253 with one message."""

CHILD_ID_VARIABLE = "STUDYDB_CHILD"
"""
The environment variable that holds the number of the request for which a child was forked. The
child's descendants inherit the variable.
"""

SERVER_ID_VARIABLE = "STUDYDB_FORK_SERVER"
"""
The environment variable that holds the fork server's random id and the identity of its worker. All
descendants of the server inherit the variable. By the variable, the worker finds these descendants
after the server has died. If the worker has died, too, the next worker on the host finds them.
"""

_ORPHAN_CHECK_EVERY_S = 0.5
_LAST_WAIT_S = 1.5
_POLL_S = 0.005
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ChildKind(IntEnum):
    """What a child does."""

    ATTEMPT = 0
    TEMPLATE = 1
    DECIDER = 2


class Forked(Struct, frozen=True, tag="forked"):
    """The child runs; `started` is its start time (see `start_of`), or 0 if that is unknown."""

    id: int
    pid: int
    started: int


class Refused(Struct, frozen=True, tag="refused"):
    """The child could not be started."""

    id: int
    error: str
    errno: int | None = None


class Outdated(Struct, frozen=True, tag="outdated"):
    """A template or decider refuses a request, because it must be replaced; `reason` says why."""

    id: int
    reason: str


class Exited(Struct, frozen=True, tag="exited"):
    """A child has ended, with an exit code or by a signal; its process group was killed."""

    id: int
    code: int | None = None
    signal: int | None = None


Reply = Forked | Refused | Outdated | Exited

_replies: msgpack.Decoder[Reply] = msgpack.Decoder(Reply)


def read_reply(frame: Frame) -> Reply:
    """Decode a reply, or raise FrameError."""
    return decode(_replies, frame, sender="fork server")


class ForkingServer:
    """
    Forks children on request, reports their ends, and kills the processes that they leave behind.

    Args:
        control: The socket of requests and replies.
        parent_pid: The pid of the parent process; when the parent ends, this process ends.
        begin: For each kind of child, a function that does the child's work and ends its process.
        outdated: Called before each fork; returns a reason not to fork, or None to fork.
        prepare: Called before each fork with the kind of the child; imports modules for the child.
        at_end: Called after all children were killed, before this process exits.
    """

    def __init__(
        self,
        control: socket.socket,
        *,
        parent_pid: int,
        begin: Mapping[ChildKind, Callable[[Channel], None]],
        outdated: Callable[[], str | None] = lambda: None,
        prepare: Callable[[ChildKind], None] = lambda _: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._control = control
        self._replies = Channel(control)
        self._parent_pid = parent_pid
        self._begin = begin
        self._outdated = outdated
        self._prepare = prepare
        self._at_end = at_end
        self._children: dict[int, int] = {}  # request numbers by pid
        self._deciders: set[int] = set()  # the request numbers of deciders
        self._strays_due_s: float | None = None
        self._wakeup, alarm = socket.socketpair()
        self._wakeup.setblocking(False)
        alarm.setblocking(False)
        self._alarm = alarm
        for number in _SIGNALS:  # the handlers do nothing; the wake-up descriptor wakes `serve`
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        """Serve until the parent ends or the worker closes the socket."""
        die_with_parent(signal.SIGTERM, self._parent_pid)
        adopt_orphans()
        poll = select.poll()
        for watched in (self._control, self._wakeup):
            poll.register(watched, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms())}
            if self._wakeup.fileno() in ready:
                self._on_signal()
            if self._control.fileno() in ready:
                self._on_request()
            self._kill_strays()

    def _wait_ms(self) -> float | None:
        if self._strays_due_s is None:
            return None
        return max(0.0, self._strays_due_s - time.monotonic()) * 1000

    def _on_signal(self) -> None:
        with suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        # A service manager may signal all processes, so a signal alone does not end this process;
        # the death of its parent does.
        if os.getppid() != self._parent_pid:
            self._end()
        self._reap()

    def _on_request(self) -> None:
        try:
            request, descriptors, _, _ = socket.recv_fds(
                self._control, REQUEST.size, MOST_DESCRIPTORS
            )
        except OSError:
            self._end()
        if len(request) < REQUEST.size:
            self._end()
        number, kind, n_descriptors = REQUEST.unpack(request)
        try:
            _refuse_lost_descriptors(descriptors, n_descriptors)
            reply = self._answer(number, ChildKind(kind), descriptors)
        except OSError as cause:
            reply = Refused(number, cause.strerror or str(cause), cause.errno)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._reply(reply)

    def _answer(self, number: int, kind: ChildKind, descriptors: Sequence[int]) -> Reply:
        if (reason := self._outdated()) is not None:
            return Outdated(number, reason)
        self._prepare(kind)
        pid = self._fork(number, kind, descriptors)
        self._children[pid] = number
        if kind is ChildKind.DECIDER:
            self._deciders.add(number)
        # `start_of` returns None for a child that has already ended; 0 means an unknown start.
        return Forked(number, pid, start_of(pid) or 0)

    def _reply(self, reply: Reply) -> None:
        try:
            self._replies.send(Frame(msgpack.encode(reply)))
        except OSError:
            self._end()

    def _fork(self, number: int, kind: ChildKind, descriptors: Sequence[int]) -> int:
        # If signals were not blocked, a signal to the new child would run the server's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            server_pid = os.getpid()
            pid = fork()
            if pid == 0:
                self._become_child(number, kind, descriptors, server_pid)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _become_child(
        self, number: int, kind: ChildKind, descriptors: Sequence[int], server_pid: int
    ) -> NoReturn:
        try:
            os.setsid()
            die_with_parent(signal.SIGKILL, server_pid)
            signal.set_wakeup_fd(-1)
            for other in _SIGNALS:
                signal.signal(other, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            job, stdout, stderr, *kept = descriptors
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for inherited in (self._control, self._wakeup, self._alarm):
                inherited.close()
            _close_all_but({job, *kept})
            os.set_inheritable(job, False)
            for descriptor in kept:
                os.set_inheritable(descriptor, True)
            os.environ[CHILD_ID_VARIABLE] = str(number)
            self._begin[kind](Channel(socket.socket(fileno=job)))
        except BaseException:  # noqa: BLE001  the child must not return into the server's loop
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while (ended := reap(leaders=self._children)) is not None:
            pid, status = ended
            number = self._children.pop(pid, None)
            if number is None:  # an adopted orphan
                continue
            self._deciders.discard(number)
            self._strays_due_s = self._strays_due_s or time.monotonic() + _ORPHAN_CHECK_EVERY_S
            self._reply(Exited(number, status) if status >= 0 else Exited(number, signal=-status))

    def _kill_strays(self) -> None:
        """
        Kill the orphans that dead children left in other process groups.

        This process adopts orphans. After an exec, the environment of an orphan contains the
        request number of the child that left the orphan. An orphan without an exec has no number
        there, so all orphans are killed once no children but deciders are left. A decider may live
        as long as the worker.
        """
        if self._strays_due_s is None or time.monotonic() < self._strays_due_s:
            return
        strays = [pid for pid in children_of(os.getpid()) if pid not in self._children]
        live = set(self._children.values())
        for pid in strays:
            owner = _owner_of(pid)
            if not live - self._deciders or (owner is not None and owner not in live):
                kill_group(pid)
        self._strays_due_s = time.monotonic() + _ORPHAN_CHECK_EVERY_S if strays else None

    def _end(self) -> NoReturn:
        deadline_s = time.monotonic() + _LAST_WAIT_S
        while time.monotonic() < deadline_s:
            for pid in {*self._children, *children_of(os.getpid())}:
                kill_group(pid)
            while (ended := reap(leaders=())) is not None:
                self._children.pop(ended[0], None)
            if not self._children and not children_of(os.getpid()):
                break
            time.sleep(_POLL_S)
        with suppress(Exception):
            self._at_end()
        os._exit(0)


def _refuse_lost_descriptors(descriptors: Sequence[int], n_sent: int) -> None:
    """Raise OSError if descriptors of a request were lost: the child would lack its locks."""
    # The kernel drops descriptors when this process reaches its limit of open files.
    if len(descriptors) < max(n_sent, LEAST_DESCRIPTORS):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _owner_of(pid: int) -> int | None:
    name = f"{CHILD_ID_VARIABLE}=".encode()
    values = [entry[len(name) :] for entry in environment_of(pid) if entry.startswith(name)]
    return int(values[0]) if values and values[0].isdigit() else None


def _close_all_but(kept: Container[int]) -> None:
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  names, not paths
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:  # noqa: PLR2004  2 is stderr
            with suppress(OSError):
                os.close(descriptor)
