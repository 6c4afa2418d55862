"""
An S3 server behind a proxy that lets some requests fail and can go away.

One process runs the server and the proxy: it runs this module as a program. The program prints the
ports of the server and of the proxy. Then it reads commands: "away" closes the proxy's port and
cuts the proxy's connections, "back" opens the port again.
"""

import http.client
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

BUCKET = "chaos"
FAIL_EVERY = 20
"""Every 20th request fails, in the ways of `FAULTS` in turn."""

FAULTS = ("refused", "cut request", "lost reply", "cut reply")

_PORTS = range(20_000, 30_000)
_TIMEOUT_S = 60.0
_LOWEST = 19
"""The nice value of the lowest priority; a thread inherits the nice value of its creator."""

_PIECE = 1 << 16
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class _Cut(Exception):
    """The connection to the client is to be cut now."""


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on to the server, and fails some of them."""

    protocol_version = "HTTP/1.1"
    server: "_Proxy"

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError, _Cut):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _pass_on(self) -> None:
        try:
            self._serve(self.server.next_fault())
        except _Cut:
            self.close_connection = True
            _cut(self.connection)
            raise

    def _serve(self, fault: str | None) -> None:
        body = self._body(is_cut=fault == "cut request")
        if fault == "refused":
            self._answer(503, [("Content-Type", "application/xml")], b"<Error/>")
            return
        status, headers, data = self._ask(body)
        if fault == "lost reply":
            raise _Cut
        self._answer(status, headers, data, is_cut=fault == "cut reply")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815  names of http.server

    def _body(self, *, is_cut: bool) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            chunks = self._chunks()
            if is_cut:
                next(chunks, b"")
                raise _Cut
            return b"".join(chunks)
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length // 2 if is_cut else length)
        if is_cut:
            raise _Cut
        return data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.backend, timeout=_TIMEOUT_S
        )
        kept = {name: value for name, value in self.headers.items() if _is_kept(name)}
        try:
            connection.request(self.command, self.path, body=body, headers=kept)
            answer = connection.getresponse()
            headers = answer.getheaders()
            data = answer.read()
        finally:
            connection.close()
        if self.command == "HEAD":
            return answer.status, headers, b""
        return answer.status, [pair for pair in headers if _is_kept(pair[0])], data

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, is_cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self.wfile.flush()
            raise _Cut


def _is_kept(header: str) -> bool:
    return header.lower() not in _HOP_BY_HOP


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, backend: int, numbers: Iterator[int]) -> None:
        self.backend, self._numbers = backend, numbers
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def next_fault(self) -> str | None:
        turn, number = divmod(next(self._numbers), FAIL_EVERY)
        return FAULTS[turn % len(FAULTS)] if number == 0 else None

    def handle_error(self, *_: Any) -> None:
        """Print nothing: clients that are killed leave broken connections."""

    def go_away(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            _cut(connection)


class FaultyStore:
    """
    The process of the server and its proxy.

    Attributes:
        url: The URL of the store, as a study names it.
        environment: The environment variables that clients of the store need.
    """

    def __init__(self, process: "subprocess.Popen[str]", *, fails: bool) -> None:
        self._process = process
        self._commands = _pipe(process.stdin)
        self._backend, port = map(int, _pipe(process.stdout).readline().split())
        port = port if fails else self._backend
        self.url = f"s3://{BUCKET}/checkpoints"
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_CONFIG_FILE": os.devnull,
        }
        self._client = _client(self._backend)
        self._client.create_bucket(Bucket=BUCKET)

    def go_away(self) -> None:
        """Let the proxy refuse connections, and cut those that are open."""
        self._send("away")

    def come_back(self) -> None:
        """Let the proxy accept connections again."""
        self._send("back")

    def give_way(self) -> None:
        """Let all other processes have the CPU first, as if the server ran on another host."""
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), _LOWEST)

    def objects(self) -> list[str]:
        """Return the names of all objects, read without the proxy."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def unfinished(self) -> list[str]:
        """Return the names of the objects of unfinished multipart uploads."""
        answer = self._client.list_multipart_uploads(Bucket=BUCKET)
        return [found["Key"] for found in answer.get("Uploads") or ()]

    def _send(self, command: str) -> None:
        self._commands.write(f"{command}\n")
        self._commands.flush()


@contextmanager
def faulty_store(*, fails: bool = True) -> Iterator[FaultyStore]:
    """
    Run the store in a `with` block.

    This process and its children get the environment variables that clients of the store need. The
    variables stay set after the block.

    Args:
        fails: Whether requests go through the proxy; if not, they go to the server, and none fails.
    """
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            store = FaultyStore(process, fails=fails)
            os.environ.update(store.environment)
            yield store
        finally:
            process.kill()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _client(port: int) -> Any:
    import boto3  # noqa: PLC0415  only runs with this store need boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )


def _start_backend() -> int:
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415  only this process needs moto
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415  needed by moto

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            """Print nothing."""

    server = make_server(
        "127.0.0.1",
        0,
        DomainDispatcherApplication(create_backend_app),
        threaded=True,
        request_handler=Quiet,
    )
    server.daemon_threads = True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def _first_proxy(backend: int, numbers: Iterator[int]) -> _Proxy:
    """
    Listen on a port that Linux, by default, gives to no outgoing connection.

    Otherwise a client that connects to the port while the proxy is away could get this same port as
    its own, and would then be connected to itself.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError):
            return _Proxy(port, backend, numbers)
    raise RuntimeError("The proxy could listen on no port from 20000 to 29999; free one of them.")


def main() -> None:
    """Serve until the input ends."""
    backend, numbers = _start_backend(), itertools.count(1)
    proxy = _first_proxy(backend, numbers)
    port = proxy.server_address[1]
    print(backend, port, flush=True)  # noqa: T201  read by FaultyStore
    for line in sys.stdin:
        if line.strip() == "away":
            proxy.go_away()
        else:
            proxy = _Proxy(port, backend, numbers)


if __name__ == "__main__":
    main()
