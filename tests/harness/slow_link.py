"""A connection to PostgreSQL through which a client's bytes pass slowly."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict

from harness.proxy import Proxy

_PIECE = 1 << 16


@contextmanager
def slow_link(server_url: str, *, bytes_per_s: float) -> Iterator[str]:
    """Yield a URL of the server's database. Only bytes to the server are slowed, not replies."""
    with Proxy(server_url) as server, socket.socket() as listener:
        # The default receive buffer takes several MiB, which would pass without delay.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        accepting = threading.Thread(
            target=_accept, args=(listener, server, bytes_per_s), daemon=True
        )
        accepting.start()
        wanted = conninfo_to_dict(server_url)
        port = listener.getsockname()[1]
        yield f"postgresql://{wanted['user']}@127.0.0.1:{port}/{wanted['dbname']}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        accepting.join()


def _accept(listener: socket.socket, server: Proxy, bytes_per_s: float) -> None:
    with suppress(OSError):  # accept fails once the listener is shut down
        while True:
            client, _ = listener.accept()
            other = server.connect_to_server()
            threading.Thread(target=_serve, args=(client, other, bytes_per_s), daemon=True).start()


def _serve(client: socket.socket, other: socket.socket, bytes_per_s: float) -> None:
    answers = threading.Thread(target=_pass_on, args=(other, client, None), daemon=True)
    with client, other:
        answers.start()
        _pass_on(client, other, bytes_per_s)
        answers.join()


def _pass_on(source: socket.socket, sink: socket.socket, bytes_per_s: float | None) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
            if bytes_per_s is not None:
                time.sleep(len(piece) / bytes_per_s)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
