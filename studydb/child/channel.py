"""Send and receive frames over a stream socket; a frame is a message of a header and a payload."""

import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from msgspec import MsgspecError, msgpack

MAX_HEADER_BYTES = 8 << 20
MAX_PAYLOAD_BYTES = 256 << 20

_LENGTHS = struct.Struct("!II")
_READ_BYTES = 1 << 18
_MOST_DESCRIPTORS = 3


class FrameError(ValueError):
    """A message breaks the protocol; for example, it is too large or cannot be decoded."""


class Frame(NamedTuple):
    """
    One message.

    Attributes:
        header: The message's fields in MessagePack, at most 8 MiB.
        payload: Bytes that belong to the message, such as a checkpoint or the trainable's source;
            at most 256 MiB.
    """

    header: bytes
    payload: bytes = b""


_Message = TypeVar("_Message")


def decode(decoder: msgpack.Decoder[_Message], frame: Frame, *, sender: str) -> _Message:
    """
    Decode a frame's header.

    Raises:
        FrameError: The frame is not a message of this sender.
    """
    try:
        return decoder.decode(frame.header)
    except MsgspecError as cause:
        raise FrameError(f"The {sender} sent a frame that is not a message: {cause}.") from cause


class Channel:
    """
    One end of a socket pair. One thread may receive while others send.

    When the peer has ended, receiving raises EOFError and sending raises OSError.

    Args:
        connection: A connected stream socket; `close` closes it.
        send_timeout_s: How long to wait for a peer that does not read; None for no limit.
    """

    def __init__(self, connection: socket.socket, *, send_timeout_s: float | None = None) -> None:
        connection.settimeout(None)  # the user's code may have set a default for new sockets
        self._socket = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()
        if send_timeout_s is not None:
            limit = struct.pack("ll", int(send_timeout_s), int(send_timeout_s % 1 * 1_000_000))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def close(self) -> None:
        self._socket.close()

    def detach(self) -> socket.socket:
        """Return the socket for another protocol; all received messages must have been read."""
        assert not self._buffer
        return self._socket

    def send(self, frame: Frame, *, descriptors: Sequence[int] = ()) -> None:
        """
        Send one whole message, and descriptors for the peer's process.

        Raises:
            FrameError: The message is too large; nothing was sent.
            OSError: The peer has ended or does not read; the channel can no longer be used.
        """
        header = frame.header
        if len(header) > MAX_HEADER_BYTES or len(frame.payload) > MAX_PAYLOAD_BYTES:
            raise FrameError(
                f"A message of {len(header)} + {len(frame.payload)} bytes is too large; "
                f"the limits are {MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}."
            )
        lengths = _LENGTHS.pack(len(header), len(frame.payload))
        message = b"".join((lengths, header, frame.payload))
        with self._sending:
            if descriptors:
                message = message[socket.send_fds(self._socket, [message], descriptors) :]
            if message:  # if the peer has read all and closed its socket, sendall(b"") would fail
                self._socket.sendall(message)

    def receive(
        self, timeout_s: float | None = None, *, descriptors: list[int] | None = None
    ) -> Frame | None:
        """
        Wait for one message.

        Args:
            timeout_s: None to wait without limit, 0 not to wait.
            descriptors: The list that takes the descriptors sent with messages; None to drop them.

        Returns:
            The message; None if no message came in time.

        Raises:
            EOFError: The peer closed the channel or died.
            FrameError: The peer announced a message that is too large.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (frame := self._take()) is None:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not self._readable(left_s):
                return None
            self._fill(descriptors)
        return frame

    def wait(self) -> None:
        """Wait until more bytes have come, or the peer has closed the channel."""
        self._readable(None)

    def _readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _fill(self, descriptors: list[int] | None) -> None:
        try:
            if descriptors is None:
                chunk = self._socket.recv(_READ_BYTES)
            else:
                chunk, passed, _, _ = socket.recv_fds(self._socket, _READ_BYTES, _MOST_DESCRIPTORS)
                descriptors += passed
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise EOFError("The other end of the channel is closed.")
        self._buffer += chunk

    def _take(self) -> Frame | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            raise FrameError(
                f"The sender announced a message of {header_bytes} + {payload_bytes} bytes, more "
                f"than {MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}."
            )
        middle = _LENGTHS.size + header_bytes
        end = middle + payload_bytes
        if len(self._buffer) < end:
            return None
        header = bytes(self._buffer[_LENGTHS.size : middle])
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return Frame(header, payload)
