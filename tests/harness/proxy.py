"""
A proxy to PostgreSQL that severs a connection at a chosen exchange, or holds back all bytes.

An exchange is a client's messages up to a Sync or a Query, and the server's replies. The last
reply, ReadyForQuery, says whether a transaction is open, so a test can find the exchange of a
COMMIT. The proxy severs the connection before the server gets the chosen exchange, or after the
server has executed it and before the client gets the replies.
"""

import socket
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_LENGTH = struct.Struct("!i")
_STARTUP = struct.Struct("!ii")
_ENCRYPTION = (80877103, 80877104)
"""The codes by which a client asks for TLS or GSS encryption; the proxy replies "N" (no)."""

_HELD_BACK = frozenset([b"P", b"B", b"D", b"C", b"E"])
"""Parse, Bind, Describe, Close, Execute: held until a message of another kind arrives."""

_EXECUTES = frozenset([b"E", b"Q"])
_ENDS_EXCHANGE = frozenset([b"S", b"Q"])
_READY = b"Z"

IDLE = "I"
"""The status in ReadyForQuery when no transaction is open."""


class Proxy:
    """
    Forwards every byte until `cut`, `freeze` or `sever` is called.

    Attributes:
        statuses: A letter for each exchange that executed something since `listen`: "I" when no
            transaction was open afterwards, else "T" or "E".
        was_cut: Whether the connection was severed at the exchange that the latest `cut` chose.
    """

    def __init__(self, server_url: str) -> None:
        self._server = conninfo_to_dict(server_url)
        self._mutex = threading.Lock()
        self._when, self._exchanges_left = "", 0
        self._passing, self._refuses = threading.Event(), False
        self._passing.set()
        self._pairs: weakref.WeakSet[_Pair] = weakref.WeakSet()
        self.statuses, self.was_cut = "", False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self) -> str:
        user = quote(str(self._server.get("user", "postgres")))
        if password := self._server.get("password"):
            user += f":{quote(str(password))}"
        port = self._listener.getsockname()[1]
        return f"postgresql://{user}@127.0.0.1:{port}/{quote(str(self._server['dbname']))}"

    # Cuts

    def listen(self) -> None:
        """Cut nothing, and collect the statuses of exchanges from now on."""
        with self._mutex:
            self.statuses, self._exchanges_left, self.was_cut = "", 0, False

    def cut(self, when: str, *, exchange: int) -> None:
        """
        Sever the connection on which the n-th exchange from now on is sent.

        Args:
            when: "before" the server gets the exchange, or "after" the server has executed it.
            exchange: n. Only exchanges that execute something count; the first is 1.
        """
        with self._mutex:
            self._when, self._exchanges_left, self.was_cut = when, exchange, False

    def must_cut(self) -> str:
        """Count an exchange; say when to cut its connection: "before", "after", or "" for never."""
        with self._mutex:
            self._exchanges_left -= 1
            if self._exchanges_left != 0:
                return ""
            self.was_cut = True
            return self._when

    def note(self, status: str) -> None:
        with self._mutex:
            self.statuses += status

    # Partitions

    def freeze(self) -> None:
        """Deliver nothing, like a network that drops packets; connections stay open."""
        self._passing.clear()

    def sever(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._refuses = True
        self._cut_all()

    def mend(self) -> None:
        """Accept connections again, and deliver all bytes, including those held back."""
        self._refuses = False
        self._passing.set()

    def await_passage(self) -> None:
        self._passing.wait()

    def _cut_all(self) -> None:
        with self._mutex:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.sever()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = _Pair(self, client)
                with self._mutex:
                    self._pairs.add(pair)
                if self._refuses:
                    pair.sever()
                threading.Thread(target=pair.run, daemon=True).start()

    def connect_to_server(self) -> socket.socket:
        host, port = str(self._server["host"]), self._server.get("port", "5432")
        if not host.startswith("/"):
            return socket.create_connection((host, int(str(port))))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    def close(self) -> None:
        """Take no more connections, and end those that are open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        self.mend()
        self._cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pair:
    """A client's connection to the proxy, and the connection to the server for this client."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self._is_severed = False
        # For each unanswered exchange: whether it executes anything.
        self._executing: list[bool] = []
        # The place in this list (from 1) of the exchange whose reply is dropped; 0 for none.
        self._dropped = 0
        self._mutex = threading.Lock()

    def run(self) -> None:
        """
        Forward until the client or the server closes its connection, or `sever` is called.

        The sockets are closed only when no thread uses them. Otherwise a new connection could get
        the file descriptor of a closed socket, and a thread that still uses this descriptor would
        read from the new connection or end it.
        """
        answers = None
        with suppress(OSError):
            self._proxy.await_passage()
            server = self._connect()
            self._forward_startup(server)
            answers = threading.Thread(target=self._forward_answers, args=(server,), daemon=True)
            answers.start()
            self._forward_requests(server)
        self.sever()
        if answers is not None:
            answers.join()
        with self._mutex:
            for end in self._ends():
                end.close()

    def _connect(self) -> socket.socket:
        try:
            server = self._proxy.connect_to_server()
        except OSError as error:
            sys.stderr.write(f"The proxy cannot connect to the server: {error!r}\n")
            raise
        with self._mutex:
            self._server = server
            if self._is_severed:
                raise ConnectionAbortedError
        return server

    def sever(self) -> None:
        with self._mutex:
            self._is_severed = True
            for end in self._ends():
                with suppress(OSError):  # the socket, or its other end, is closed
                    end.shutdown(socket.SHUT_RDWR)

    def _ends(self) -> list[socket.socket]:
        return [end for end in (self._client, self._server) if end is not None]

    def _forward_startup(self, server: socket.socket) -> None:
        while True:
            head = _exactly(self._client, _STARTUP.size)
            if len(head) < _STARTUP.size:
                raise ConnectionResetError
            length, code = _STARTUP.unpack(head)
            body = _exactly(self._client, length - _STARTUP.size)
            if code not in _ENCRYPTION:
                server.sendall(head + body)
                return
            self._client.sendall(b"N")

    def _forward_requests(self, server: socket.socket) -> None:
        held_back, executes = b"", False
        for frame in _frames(self._client):
            kind = frame[:1]
            if not _is_complete(frame):
                return
            held_back += frame
            executes |= kind in _EXECUTES
            if kind in _HELD_BACK:
                continue
            if kind in _ENDS_EXCHANGE:
                when = self._proxy.must_cut() if executes else ""
                if when == "before":
                    return
                self._expect_answer(executes=executes, dropped=when == "after")
                executes = False
            self._proxy.await_passage()
            server.sendall(held_back)
            held_back = b""

    def _expect_answer(self, *, executes: bool, dropped: bool) -> None:
        with self._mutex:
            self._executing.append(executes)
            if dropped:
                self._dropped = len(self._executing)

    def _forward_answers(self, server: socket.socket) -> None:
        with suppress(OSError):
            for frame in _frames(server):
                is_dropped, ends = self._dropped == 1, frame[:1] == _READY
                if ends and self._ends_an_exchange(frame) and is_dropped:
                    break
                if not is_dropped:
                    self._proxy.await_passage()
                    self._client.sendall(frame)
        self.sever()

    def _ends_an_exchange(self, ready: bytes) -> bool:
        """Count the reply to an exchange; return False for the reply to the startup."""
        with self._mutex:
            if not self._executing:
                return False
            if self._executing.pop(0):
                self._proxy.note(ready[-1:].decode())
            if self._dropped > 0:
                self._dropped -= 1
            return True


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """
    Each message after the startup: a letter, the number of bytes after the letter, a body.

    If the connection ends within a message, the last item is the received part of the message. If
    the server cannot start a process for the connection, it sends only an "E" and a text, and the
    two are the last item.
    """
    while head := _exactly(connection, 1 + _LENGTH.size):
        n_bytes = _LENGTH.unpack(head[1:])[0] - _LENGTH.size if len(head) > _LENGTH.size else 0
        yield head + _exactly(connection, n_bytes)


def _is_complete(frame: bytes) -> bool:
    return len(frame) > _LENGTH.size and len(frame) == 1 + _LENGTH.unpack(frame[1:5])[0]


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    """Receive `n_bytes` bytes; fewer only if the connection ends."""
    parts = []
    while n_bytes > 0:
        part = connection.recv(n_bytes)
        if not part:
            break
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)
