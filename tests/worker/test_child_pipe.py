"""Messages between a child and its worker are validated, bounded in size, and not pickled."""

import math
import socket
import struct
import uuid

import pytest
from harness.child_messages import STOP
from msgspec import msgpack, structs

from studydb.artifacts import Stores, digest_of
from studydb.artifacts.checkpoint_records import Restore
from studydb.child.channel import Channel, Frame, FrameError
from studydb.child.job import Job, TrainableImport, read_job, write_job
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
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.errors import InvalidReport
from studydb.domain.failures import MESSAGE_BYTES, TRACEBACK_BYTES, TYPE_BYTES, Failure
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result, read_report
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable, TrainableKind

FROM_CHILD = [
    Reported(None, Result(1, 0.5, {"a": [1, "x"]}, 2.0)),
    Reported(3, None, None, "disk full"),
    FlushAsked(4),
    Ended(End.COMPLETED),
    Ended(End.FAILED, Failure("ValueError", "message", "traceback")),
    Reported(None, Result(2**62 - 1, -math.inf, {"a": {"b": [None, True, -(2**63)]}}, None)),
]


FROM_SUPERVISOR = [Answered(1, STOP, 9), Answered(2), StopNotice(STOP), LostNotice()]


@pytest.mark.parametrize("message", [*FROM_CHILD, *FROM_SUPERVISOR])
def test_message_is_read_as_it_was_written(message):
    read = read_from_child if message in FROM_CHILD else read_from_supervisor

    assert read(write(message)) == message


SAVED = {
    "uuid": str(uuid.uuid4()),
    "kind": "dict",
    "url": "inline:",
    "digest": digest_of(b"right"),
    "size_bytes": 5,
    "step": 1,
}
RESULT = {"step": 1, "value": 1.0, "metrics": {}, "time_total_s": 2.0}


def framed(header, payload=b""):
    """Return a frame with the given header, which need not be valid."""
    return Frame(msgpack.encode(header), payload)


def report(**more):
    return framed({"type": "report", "id": 1, "result": None, **more}, b"right")


@pytest.mark.parametrize(
    "header",
    [
        {},
        [],
        7,
        {"type": "exec"},
        {"type": "flush"},
        {"type": "flush", "id": "1"},
        {"type": "flush", "id": True},
        {"type": "flush", "id": -1},
        {"type": "flush", "id": 2**63},
        {"type": "answer", "id": 1},
        {"type": "end", "end": "sudden", "failure": None},
        {"type": "end", "end": "failed", "failure": {"type": 1}},
    ],
)
def test_worker_refuses_a_malformed_message(header):
    with pytest.raises(FrameError):
        read_from_child(framed(header))


@pytest.mark.parametrize(
    "damage",
    [
        {"step": True},
        {"step": "1"},
        {"step": 1.5},
        {"value": "high"},
        {"value": None},
        {"metrics": []},
        {"metrics": {1: 2}},
        {"time_total_s": math.nan},
        {"time_total_s": math.inf},
        {"time_total_s": -1.0},
    ],
)
def test_worker_refuses_a_malformed_result(damage):
    assert read_from_child(report(result=RESULT))
    with pytest.raises(FrameError):
        read_from_child(report(result=RESULT | damage))


@pytest.mark.parametrize(
    "damage",
    [
        {"uuid": "../.."},
        {"uuid": SAVED["uuid"] + "\n"},
        {"kind": "pickle"},
        {"url": "file:///a\0b"},
        {"url": "x" * 5000},
        {"digest": "0" * 63},
        {"digest": "0" * 64},
        {"step": 2**62},
        {"step": 2**63},
        {"step": -1},
        {"size_bytes": -1},
    ],
)
def test_worker_refuses_a_malformed_checkpoint(damage):
    assert read_from_child(report(saved=SAVED))
    with pytest.raises(FrameError):
        read_from_child(report(saved=SAVED | damage))


@pytest.mark.parametrize("text", [b"\xffxx", b"\xed\xa0\x80"])
def test_worker_refuses_text_that_is_not_unicode(text):
    frame = report(artifact_error="abc")

    assert read_from_child(frame).artifact_error == "abc"
    with pytest.raises(FrameError, match="codec"):
        read_from_child(Frame(frame.header.replace(b"abc", text), frame.payload))


def test_texts_from_a_child_are_cut_to_the_limits_of_the_attempt_table():
    huge = "a\0b" * 100_000
    failure = {"type": huge, "message": huge, "traceback": huge, "bases": [huge]}

    ended = read_from_child(framed({"type": "end", "end": "failed", "failure": failure}))
    reported = read_from_child(report(artifact_error=huge))

    lengths = [len(text) for text in (ended.failure.type, ended.failure.message)]
    assert lengths == [TYPE_BYTES, MESSAGE_BYTES]
    assert len(ended.failure.traceback) == TRACEBACK_BYTES
    assert len(reported.artifact_error) == MESSAGE_BYTES
    assert len(ended.failure.bases[0]) == TYPE_BYTES
    texts = (ended.failure.type, ended.failure.message, ended.failure.traceback)
    assert "\0" not in "".join([*texts, *ended.failure.bases, reported.artifact_error])


@pytest.mark.parametrize("depth", [500, 5000, 1_000_000])
def test_deeply_nested_message_is_refused_without_crashing_the_interpreter(depth):
    header = msgpack.encode({"type": "report", "id": 1, "result": RESULT})
    deep = header.replace(b"\xa7metrics\x80", b"\xa7metrics" + b"\x81\xa1a" * depth + b"\x80")

    try:
        message = read_from_child(Frame(deep))
    except FrameError:
        return
    with pytest.raises(InvalidReport, match="more than 32 levels"):
        read_report({"loss": 1.0, **message.result.metrics}, metric="loss", last_step=0)


@pytest.mark.parametrize("prefix", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
def test_worker_refuses_a_message_that_announces_more_bytes_than_it_has(prefix):
    header = msgpack.encode({"type": "report", "id": 1, "result": RESULT})
    damaged = header.replace(b"\xa7metrics\x80", b"\xa7metrics\x81\xa1a" + prefix + b"\xff" * 4)

    with pytest.raises(FrameError):
        read_from_child(Frame(damaged))


def test_worker_refuses_inline_bytes_that_differ_from_their_digest():
    header = {"type": "report", "id": 1, "result": None, "saved": SAVED}

    assert read_from_child(framed(header, b"right")).saved.data == b"right"
    with pytest.raises(FrameError, match="differs from its digest"):
        read_from_child(framed(header, b"wrong"))


def test_job_is_read_as_it_was_written(tmp_path):
    config = {"big": 2**200, "deep": [[{"a": None}]], "text": "\N{SNOWMAN}"}
    trainable = Trainable("u", TrainableKind.PICKLE, "f", "/", "3.11", source=b"source")
    job = Job(
        to_import=TrainableImport("s", trainable, signed=True, workdirs=("/a", "/b")),
        trial_uuid="t",
        number=3,
        attempt=2,
        config=config,
        seed=2**32 - 1,
        objective=Objective("loss", Mode.MAX),
        scratch="/c",
        store="inline:",
        rules=({"metric": "loss", "op": "<=", "bound": -math.inf},),
        restore=Restore(
            CheckpointKind.DICT, "inline:", "0" * 64, 7, 10, b"checkpoint", Stores("a")
        ),
        next_decision_step=9,
    )

    assert read_job(write_job(job)) == job
    bare = structs.replace(job.with_source(None), restore=None)
    assert read_job(write_job(bare)) == bare


@pytest.mark.parametrize("frame", [Frame(b""), Frame(b"\x80", b"\x80"), framed({"type": "flush"})])
def test_frame_that_is_not_a_job_is_refused(frame):
    with pytest.raises(FrameError):
        read_job(frame)


@pytest.fixture
def connected():
    """A channel and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, send_timeout_s=0.05), theirs


@pytest.mark.parametrize(
    "data", [struct.pack("!II", 2**32 - 1, 0), struct.pack("!II", 0, 2**32 - 1)]
)
def test_channel_refuses_a_message_over_its_size_limit(connected, data):
    channel, theirs = connected

    theirs.sendall(data)

    with pytest.raises(FrameError):
        channel.receive(5)


def test_channel_joins_pieces_of_a_message_and_waits_no_longer_than_its_timeout(connected):
    channel, theirs = connected
    data = struct.pack("!II", 2, 3) + b"\x80\x01xyz"

    for index in range(len(data)):
        assert channel.receive(0) is None
        theirs.send(data[index : index + 1])

    assert channel.receive(5) == Frame(b"\x80\x01", b"xyz")
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive(5)


def test_send_to_a_peer_that_does_not_read_fails_after_the_timeout(connected):
    channel, _ = connected

    with pytest.raises(OSError, match="temporarily unavailable"):
        channel.send(Frame(b"", bytes(8 << 20)))
