"""The pipe between child and supervisor: strict, bounded, without pickles."""

# The functions here are such as users write.

import socket
import struct
import uuid

import pytest
from said import STOP

from studydb.artifacts import digest_of
from studydb.child.channel import Channel, Frame, FrameError
from studydb.child.messages import (
    Answered,
    End,
    Ended,
    FlushAsked,
    LostNotice,
    Reported,
    StopNotice,
    read_from_child,
    read_from_supervisor,
    write,
)
from studydb.domain.metrics import Result
from studydb.domain.records import Failure

EVERY_MESSAGE = [
    Reported(None, Result(1, 0.5, {"a": [1, "x"]}, 2.0)),
    Reported(3, None, None, "disk full"),
    FlushAsked(4),
    Ended(End.COMPLETED),
    Ended(End.FAILED, Failure("ValueError", "message", "traceback")),
]


@pytest.mark.parametrize("message", EVERY_MESSAGE)
def test_what_a_child_writes_is_what_is_read(message):
    assert read_from_child(write(message)) == message


@pytest.mark.parametrize(
    "message", [Answered(1, STOP, 9), Answered(2), StopNotice(STOP), LostNotice()]
)
def test_what_a_supervisor_writes_is_what_is_read(message):
    assert read_from_supervisor(write(message)) == message


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"type": "exec"},
        {"type": "report", "id": "1"},
        {"type": "report", "id": 1, "result": [1]},
        {"type": "report", "id": 1, "result": [True, 1.0, {}, None]},
        {"type": "report", "id": 1, "result": ["1", 1.0, {}, None]},
        {"type": "report", "id": 1, "result": [1, "high", {}, None]},
        {"type": "report", "id": 1, "result": [1, 1.0, [], None]},
        {"type": "report", "id": 1, "saved": {"uuid": "../.."}},
        {"type": "flush"},
        {"type": "end", "end": "sudden", "failure": None},
        {"type": "end", "end": "failed", "failure": {"type": 1}},
    ],
)
def test_supervisor_believes_no_malformed_message(header):
    with pytest.raises(FrameError):
        read_from_child(Frame(header))


def test_supervisor_believes_no_inline_bytes_that_differ_from_their_digest():
    saved = {
        "uuid": str(uuid.uuid4()),
        "kind": "dict",
        "url": "inline:",
        "digest": digest_of(b"right"),
        "size_bytes": 5,
        "step": 1,
        "data": None,
    }

    assert read_from_child(Frame({"type": "report", "id": 1, "saved": saved}, b"right"))
    with pytest.raises(FrameError, match="differs from its digest"):
        read_from_child(Frame({"type": "report", "id": 1, "saved": saved}, b"wrong"))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!II", 2**32 - 1, 0),
        struct.pack("!II", 0, 2**32 - 1),
        struct.pack("!II", 4, 0) + b"\x80abc",
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 200_000, 0) + b"[" * 200_000,
    ],
)
def test_channel_takes_nothing_but_bounded_json(data):
    ours, theirs = socket.socketpair()
    channel = Channel(ours)

    theirs.sendall(data)

    with pytest.raises(FrameError):
        channel.receive(5)
    channel.close()
    theirs.close()


def test_channel_joins_pieces_and_gives_up_in_time():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    data = struct.pack("!II", 2, 3) + b"{}xyz"

    for index in range(len(data)):
        assert channel.receive(0) is None
        theirs.send(data[index : index + 1])

    assert channel.receive(5) == Frame({}, b"xyz")
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive(5)
    channel.close()


def test_peer_that_reads_nothing_does_not_hold_a_sender_for_ever():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, send_timeout_s=0.05)

    with pytest.raises(OSError, match="temporarily unavailable"):
        channel.send(Frame({}, bytes(8 << 20)))

    channel.close()
    theirs.close()
