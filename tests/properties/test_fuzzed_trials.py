"""
A worker survives any bytes that a trial's process sends, and runs the next trial.

Only one message ends the worker: it says that the host cannot run the trial. The tests do not send
this message. `report` either stores a Python value or refuses it with InvalidReport.

`STUDYDB_FUZZ_MINUTES=10 scripts/test tests/properties/test_fuzzed_trials.py` runs each test for ten
minutes on each database.
"""

import os
import sys
import time

import pytest
from fleet.workers import TRAINABLES
from harness.arrange import rows
from harness.supervised_slot import COMPLETED, GOOD, Supervised, failed, framed, reported
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from studydb.child.messages import End
from studydb.domain.life.states import State
from studydb.domain.trainable import Trainable
from studydb.worker.fork_server_client import ForkServer

LONG_S = 60.0 * float(os.environ.get("STUDYDB_FUZZ_MINUTES", "0"))
EXAMPLES = 200 if LONG_S else 30
LIMIT_S = 20.0
"""The time within which a worker must run two trials."""

integers = st.integers(-(2**63), 2**64 - 1)
leaves = st.none() | st.booleans() | integers | st.floats() | st.text(max_size=30) | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=15,
)


def deep(depth, lists):
    value = None
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


metrics = st.dictionaries(
    st.text(max_size=10), values | st.builds(deep, st.integers(1, 300), st.booleans()), max_size=4
)
numbers = st.floats() | st.sampled_from([sys.float_info.max, 5e-324, -0.0])


def or_invalid(strategy):
    """Generate a value of `strategy`; in about a tenth of the examples, one of `values`."""
    return st.integers(0, 9).flatmap(lambda draw: values if draw == 0 else strategy)


texts = or_invalid(st.text() | st.sampled_from(["a\0b", "x" * 200_000]))
results = st.fixed_dictionaries(
    {
        "step": or_invalid(st.integers(0, 6)),
        "value": or_invalid(numbers),
        "metrics": or_invalid(metrics),
        "time_total_s": or_invalid(st.none() | st.floats(0, 1e9)),
    }
)
saved = st.fixed_dictionaries(
    {
        "uuid": or_invalid(st.uuids().map(str)),
        "kind": or_invalid(st.sampled_from(["dict", "directory"])),
        "url": or_invalid(st.sampled_from(["inline:", "file:///nowhere/x", "../..", "s3://a"])),
        "digest": or_invalid(st.sampled_from(["0" * 64, "e3b0c442" + "98fc1c14" * 7])),
        "size_bytes": or_invalid(st.integers(0, 9)),
        "step": or_invalid(st.integers(0, 2**62)),
    }
)
ids = or_invalid(st.none() | st.integers(0, 9))
reports = st.fixed_dictionaries(
    {"type": st.just("report"), "id": ids, "result": or_invalid(st.none() | results)},
    optional={"saved": or_invalid(saved), "artifact_error": texts},
)
flushes = st.fixed_dictionaries({"type": st.just("flush"), "id": ids})
failures = st.fixed_dictionaries({"type": texts, "message": texts, "traceback": texts})
ends = st.fixed_dictionaries(
    {"type": st.just("end"), "end": or_invalid(st.sampled_from(list(End)))},
    optional={"failure": or_invalid(st.none() | failures)},
)
headers = (reports | reports | flushes | ends).map(msgpack.encode) | values.map(msgpack.encode)


def damage(data, place, byte, kept):
    place %= len(data)
    return (data[:place] + bytes([byte]) + data[place + 1 :])[: max(1, int(kept * len(data)))]


valid = st.builds(reported, st.integers(1, 6), numbers)
frames = valid | st.builds(framed, headers, st.just(b"") | st.binary(max_size=40))
damaged = st.builds(
    damage,
    frames,
    st.integers(0, 10**6),
    st.integers(0, 255),
    st.just(1.0) | st.floats(0, 1),
)
raw = st.binary(max_size=60)
nested = st.builds(
    lambda byte, n: framed(byte * n),
    st.sampled_from([b"\x91", b"\x81\xa1a"]),
    st.integers(1, 100_000),
)
pieces = valid | frames | frames | damaged | raw | raw.map(framed) | nested
last = st.sampled_from([COMPLETED, failed("E", "m", "t"), b""])
streams = st.builds(lambda some, end: b"".join(some) + end, st.lists(pieces, max_size=5), last)


@pytest.fixture
def supervised(database, tmp_path):
    supervised = Supervised(database, tmp_path)
    yield supervised
    supervised.close()


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_worker_survives_any_bytes_from_a_trial(database, supervised):
    newest = f"SELECT state FROM trial WHERE study_id = {supervised.study.id} ORDER BY number DESC LIMIT 2"

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(streams)
    def survives(stream):
        assume(End.UNPREPARED.encode() not in stream)  # a child ends its worker with this message
        began_s = time.monotonic()

        interruption = supervised.run(stream, GOOD)

        assert interruption.gave_up is None
        (second,), (first,) = rows(database, newest)
        assert second == State.TERMINATED
        assert first in (State.TERMINATED, State.ERROR)
        assert time.monotonic() - began_s < LIMIT_S

    until_s = time.monotonic() + LONG_S
    survives()
    while time.monotonic() < until_s:
        survives()


@pytest.mark.timeout(LONG_S + 300)
def test_report_stores_or_refuses_any_python_value(database):
    trainable = Trainable(
        "00000000-0000-4000-8000-000000000001",
        "import",
        "odd_metrics:train",
        str(TRAINABLES),
        f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    supervised = Supervised(database, TRAINABLES, trainable=trainable)
    server = ForkServer()
    server.start()
    until_s = time.monotonic() + LONG_S
    try:
        while True:
            assert supervised.run(forkserver=server, trials=4).gave_up is None
            if time.monotonic() >= until_s:
                break
    finally:
        server.close()
        supervised.close()

    assert rows(
        database,
        "SELECT DISTINCT state, error_message FROM trial JOIN attempt ON trial.id = attempt.trial_id",
    ) == [("TERMINATED", None)]
