"""
If a trial's process sends invalid content, at most its attempt fails; the worker continues.

A fault of the host or of the database ends the worker, and no trial fails.
"""

import math
import struct
import sys

import pytest
from harness.arrange import rows, states_of
from harness.supervised_slot import (
    COMPLETED,
    GOOD,
    failed,
    framed,
    reported,
    wire,
)
from msgspec import msgpack, structs

from studydb.child.messages import End, Ended
from studydb.domain.errors import StorageError
from studydb.domain.failures import MESSAGE_BYTES, TRACEBACK_BYTES, TYPE_BYTES
from studydb.domain.life.states import State
from studydb.operations import attempt_end
from studydb.worker import attempt


def failures(database):
    """Read each attempt's reason, error type, message and traceback, in the order of the trials."""
    return rows(
        database,
        "SELECT reason, error_type, error_message, traceback FROM attempt ORDER BY trial_id",
    )


def deep(depth):
    value = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


RESULT = {"step": 1, "value": 1.0, "metrics": {}, "time_total_s": 2.0}


def raw_report(**damage):
    header = {"type": "report", "id": None, "result": RESULT | damage}
    return framed(msgpack.encode(header))


INVALID = {
    "nested 600 deep": reported(deep=deep(600)),
    "a list 900 deep": framed(
        msgpack.encode({"type": "report", "id": None, "result": RESULT}).replace(
            b"\xa7metrics\x80", b"\xa7metrics\x81\xa1a" + b"\x91" * 900 + b"\xc0"
        )
    ),
    "nested a million deep": framed(b"\x91" * 1_000_000),
    "a NUL in a name": reported(**{"a\0b": 1.0}),
    "a NUL in a value": reported(text="a\0b"),
    "a step of 2**62": raw_report(step=2**62),
    "a negative step": raw_report(step=-1),
    "bytes as a metric": reported(raw=b"\x00"),
    "a timestamp as a metric": raw_report(metrics={"at": msgpack.Ext(5, b"x")}),
    "an infinite time": raw_report(time_total_s=math.inf),
    "bytes that are no MessagePack": framed(b"\xc1"),
    "an empty frame": framed(b""),
    "a frame over its limit": struct.pack("!II", 2**31, 0),
    "the end STOPPED, although nothing stopped the attempt": wire(Ended(End.STOPPED)),
    "the end GIVEN_BACK, although the trainable is not a command": wire(Ended(End.GIVEN_BACK)),
    "the end LOST, although the attempt has its lease": wire(Ended(End.LOST)),
    "the end UNPREPARED, although the attempt has reported": reported()
    + wire(Ended(End.UNPREPARED)),
}


@pytest.mark.parametrize("script", INVALID.values(), ids=INVALID)
def test_trial_with_invalid_message_fails_and_next_trial_completes(supervised, database, script):
    interruption = supervised.run(script + COMPLETED, GOOD)

    assert interruption.gave_up is None
    assert states_of(database, supervised.study) == [State.ERROR, State.TERMINATED]
    (first, kind, message, _), (second, *_) = failures(database)
    assert (first, second) == ("FAILED", "COMPLETED")
    assert kind.startswith("studydb.")
    assert message


TEXTS = ["a\0b", "x" * 10_000_000, "\N{SNOWMAN}" * 100_000, "\x1b[0m \ufffe"]


@pytest.mark.parametrize("text", TEXTS, ids=["nul", "huge", "wide", "odd"])
def test_failure_with_long_or_unusual_text_is_stored_within_the_limits(supervised, database, text):
    interruption = supervised.run(failed(text[:2_000_000], text[:4_000_000], text[:1000]), GOOD)

    assert interruption.gave_up is None
    assert states_of(database, supervised.study) == [State.ERROR, State.TERMINATED]
    (reason, kind, message, trace), _ = failures(database)
    assert reason == "FAILED"
    limits = (TYPE_BYTES, MESSAGE_BYTES, TRACEBACK_BYTES)
    for found, limit in zip((kind, message, trace), limits, strict=True):
        assert 0 < len(found.encode()) <= limit
        assert "\0" not in found


@pytest.mark.each_database
def test_trial_completes_if_the_sum_of_its_values_exceeds_the_largest_double(supervised, database):
    largest = sys.float_info.max
    script = reported(1, largest) + reported(2, largest) + COMPLETED

    assert supervised.run(script, GOOD).gave_up is None

    assert states_of(database, supervised.study) == [State.TERMINATED] * 2


@pytest.fixture
def break_endings(monkeypatch):
    """Return a function that makes the next `times` calls of `decide_ending` raise an error."""

    def break_endings(times):
        genuine, left = attempt_end.decide_ending, [ZeroDivisionError("a bug of studydb's")] * times

        def decide_ending(*arguments):
            if left:
                raise left.pop()
            return genuine(*arguments)

        monkeypatch.setattr(attempt_end, "decide_ending", decide_ending)

    return break_endings


def test_trial_fails_if_its_ending_raises_an_internal_error_and_the_next_trial_completes(
    supervised, database, break_endings
):
    break_endings(1)

    assert supervised.run(failed(), GOOD).gave_up is None

    (reason, kind, _, trace), (second, *_) = failures(database)
    assert (reason, kind, second) == ("FAILED", "ZeroDivisionError", "COMPLETED")
    assert "in decide_ending" in trace
    assert "operations/finish.py" in trace


def test_trial_that_cannot_be_ended_stays_running_and_the_next_trial_completes(
    supervised, database, break_endings
):
    break_endings(2)

    assert supervised.run(failed(), GOOD).gave_up is None

    assert states_of(database, supervised.study) == [State.RUNNING, State.TERMINATED]
    assert "trial 0 cannot be ended: ZeroDivisionError: a bug of studydb's" in supervised.log


def test_trial_fails_if_the_database_refuses_one_of_its_values(supervised, database, monkeypatch):
    genuine = attempt.read_report

    def read_report(report, **more):
        read = genuine(report, **more)
        return structs.replace(read, step=2**70) if read.metrics else read

    monkeypatch.setattr(attempt, "read_report", read_report)

    interruption = supervised.run(reported() + reported(2, extra=1.0) + COMPLETED, GOOD)

    assert interruption.gave_up is None
    assert states_of(database, supervised.study) == [State.ERROR, State.TERMINATED]
    (reason, kind, message, _), _ = failures(database)
    assert (reason, kind.rpartition(".")[2]) == ("FAILED", "InvalidData")
    assert "cannot store a value" in message


@pytest.mark.parametrize(
    "error",
    [StorageError("no right to write"), OSError(28, "No space left on device"), MemoryError()],
)
def test_fault_of_host_or_database_ends_the_worker_and_no_trial_fails(
    supervised, database, monkeypatch, error
):
    def read_report(*_arguments, **_more):
        raise error

    monkeypatch.setattr(attempt, "read_report", read_report)

    interruption = supervised.run(GOOD, GOOD)

    assert interruption.gave_up
    assert [reason for reason, *_ in failures(database)] == ["LOST"]


def test_sql_error_ends_the_worker_and_no_trial_fails(supervised, database, monkeypatch):
    def read_report(*_arguments, **_more):
        with database.begin() as txn:
            txn.run_text("SELECT no_such_column FROM trial")
            txn.raw("SELECT 1")

    monkeypatch.setattr(attempt, "read_report", read_report)

    assert "no_such_column" in supervised.run(GOOD, GOOD).gave_up

    assert [reason for reason, *_ in failures(database)] == ["LOST"]
