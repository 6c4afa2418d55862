"""
Stands between clients and PostgreSQL on a TCP port, and severs a connection at its COMMIT.

It reads the protocol's frames: what the server has answered is known to the byte, so a cut falls
exactly before the COMMIT arrives, or after it has been carried out and before its reply.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_LENGTH = struct.Struct("!i")
_STARTUP = struct.Struct("!ii")
_ENCRYPTION = (80877103, 80877104)
"""A client asks for TLS or GSS before anything else; "N" says that there is none."""

_COMMIT = b"COMMIT"


class Proxy:
    """
    Forwards every byte until it is told where to cut.

    Attributes:
        was_cut: Whether the cut that was last asked for has been made.
    """

    def __init__(self, server_url: str) -> None:
        """Listen on a free port of this host."""
        self._server = conninfo_to_dict(server_url)
        self._when, self._commits_left = "", 0
        self._mutex = threading.Lock()
        self.was_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self) -> str:
        """The server's URL, by way of this port."""
        user = quote(str(self._server.get("user", "postgres")))
        if password := self._server.get("password"):
            user += f":{quote(str(password))}"
        port = self._listener.getsockname()[1]
        return f"postgresql://{user}@127.0.0.1:{port}/{quote(str(self._server['dbname']))}"

    def cut(self, when: str, *, nth: int = 1) -> None:
        """
        Sever the connection that sends the n-th COMMIT from now on.

        Args:
            when: "before" it arrives, or "after" it was carried out, before its reply.
            nth: From 1; 0 to cut no more.
        """
        with self._mutex:
            self._when, self._commits_left, self.was_cut = when, nth, False

    def must_cut(self) -> str:
        """Told of each COMMIT, by its connection: "before" or "after" if it is the one."""
        with self._mutex:
            self._commits_left -= 1
            if self._commits_left != 0:
                return ""
            self.was_cut = True
            return self._when

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_Pair(self, client).run, daemon=True).start()

    def connect_to_server(self) -> socket.socket:
        """A connection of the proxy's own."""
        host, port = str(self._server["host"]), self._server.get("port", "5432")
        if not host.startswith("/"):
            return socket.create_connection((host, int(str(port))))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def close(self) -> None:
        """Take no more connections; those that are open end with their client or server."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Pair:
    """A client's connection and the proxy's own to the server for it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server = proxy.connect_to_server()
        self._ends_at_commit = False

    def run(self) -> None:
        with suppress(OSError):
            self._forward_startup()
            threading.Thread(target=self._forward_answers, daemon=True).start()
            for frame in _frames(self._client):
                if _is_commit(frame):
                    when = self._proxy.must_cut()
                    self._ends_at_commit = when == "after"
                    if when == "before":
                        break
                self._server.sendall(frame)
        self._sever()

    def _forward_startup(self) -> None:
        while True:
            head = _exactly(self._client, _STARTUP.size)
            length, code = _STARTUP.unpack(head)
            body = _exactly(self._client, length - _STARTUP.size)
            if code not in _ENCRYPTION:
                self._server.sendall(head + body)
                return
            self._client.sendall(b"N")

    def _forward_answers(self) -> None:
        with suppress(OSError):
            for frame in _frames(self._server):
                if self._ends_at_commit and frame == _completed(_COMMIT):
                    break
                self._client.sendall(frame)
        self._sever()

    def _sever(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Each message after the first: a letter, a length that counts itself, a body."""
    while True:
        head = _exactly(connection, 1 + _LENGTH.size)
        (length,) = _LENGTH.unpack(head[1:])
        yield head + _exactly(connection, length - _LENGTH.size)


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    parts = []
    while n_bytes:
        part = connection.recv(n_bytes)
        if not part:
            raise ConnectionResetError
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def _is_commit(frame: bytes) -> bool:
    """Whether a client's message is COMMIT: as a simple query, or parsed without a name."""
    return frame[:1] in {b"Q", b"P"} and frame[5:].lstrip(b"\0").startswith(_COMMIT + b"\0")


def _completed(tag: bytes) -> bytes:
    return b"C" + _LENGTH.pack(_LENGTH.size + len(tag) + 1) + tag + b"\0"
