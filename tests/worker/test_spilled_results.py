"""Results that wait for the database use bounded memory and disk, and are stored once, in order."""

import errno
import itertools
import math
import os
from contextlib import ExitStack, closing

import pytest
from harness.arrange import SimulatedWorker, live_results, new_study, trial_of

from studydb.domain.errors import StorageBusy
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State
from studydb.domain.metrics import Result, weigh
from studydb.lease import buffer, held, room
from studydb.lease.held import HeldAttempt
from studydb.lease.room import Queue, Room, SpillFile

ODD = {
    "nan": math.nan,
    "inf": -math.inf,
    "name": "NaN",
    "lines": "a\nb\u2028c",
    "lone": "é\N{PILE OF POO}",
    "list": [1, 0.1, None, True, {"a": [5e-324]}],
    "big": 2**1000,
}


def result(step, size=100):
    return Result(step, 1.0 / step, {"text": "x" * size, **ODD}, 0.5 * step)


@pytest.fixture
def opened():
    """A function that returns its argument, which is closed when the test ends."""
    with ExitStack() as stack:
        yield lambda one: stack.enter_context(closing(one))


def take_all(queue, *, rows=3, size_bytes=1 << 20):
    """Empty the queue in batches; return the steps of its results."""
    steps = []
    while queue.n_waiting:
        batch, size = queue.take(rows, size_bytes)
        queue.free(size)
        steps += [one.step for one in batch]
    return steps


def test_spilled_results_are_read_as_they_were_written(opened):
    spill = opened(SpillFile(Room()))
    written = [result(step) for step in range(1, 6)]

    assert all(spill.append(one) for one in written)

    assert repr(spill.read()) == repr(written)
    assert spill.read() == []


def test_spilled_result_that_completes_its_trial_is_read_as_it_was_written(opened):
    spill = opened(SpillFile(Room()))
    last = Result(3, 0.5, {}, 1.5, is_last=True)

    assert spill.append(last)

    assert spill.read() == [last]


@pytest.mark.parametrize("memory_bytes", [0, 3_000, 1 << 20])
@pytest.mark.parametrize("spill_bytes", [0, 3_000, 1 << 20])
def test_results_keep_their_order_for_any_limits_of_memory_and_disk(
    monkeypatch, opened, memory_bytes, spill_bytes
):
    monkeypatch.setattr(room, "READ_BYTES", 2_000)
    queue = opened(Queue(Room(memory_bytes=memory_bytes, spill_bytes=spill_bytes), weigh))
    steps = itertools.count(1)
    taken = []
    for n_added in (1, 7, 2, 30, 1):
        for step in itertools.islice(steps, n_added):
            queue.add(result(step))
        batch, size = queue.take(4, 1 << 20)
        queue.free(size)
        taken += [one.step for one in batch]

    taken += take_all(queue)

    assert taken == list(range(1, 42))


def test_closed_queue_frees_its_memory_and_disk(opened):
    shared = Room(memory_bytes=5_000, spill_bytes=5_000)
    queue = opened(Queue(shared, weigh))
    for step in range(1, 30):
        queue.add(result(step))
    assert queue.is_full

    queue.close()

    assert shared.take("memory", 5_000)
    assert shared.take("disk", 5_000)


def test_memory_is_shared_by_all_attempts_of_a_worker(opened):
    shared = Room(memory_bytes=3 * weigh(result(1)))
    queues = [opened(Queue(shared, weigh)) for _ in range(2)]
    for queue in queues:
        for step in range(1, 3):
            queue.add(result(step))

    assert sum(queue.memory_bytes for queue in queues) == 3 * weigh(result(1))
    assert [queue.n_waiting for queue in queues] == [2, 2]


def test_spill_file_has_no_name_and_is_readable_by_its_owner_alone(tmp_path, monkeypatch, opened):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(room.tempfile, "tempdir", None)
    spill = opened(SpillFile(Room()))

    assert spill.append(result(1))

    mode = os.fstat(spill._file.fileno()).st_mode
    assert mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


def test_message_about_a_full_disk_is_printed_once_and_no_result_is_lost(monkeypatch, opened):
    printed = []
    queue = opened(Queue(Room(memory_bytes=0, say=printed.append), weigh))
    queue.add(result(1))

    def full(fd, data, offset):
        os_pwrite(fd, data[:10], offset)  # a full disk may still store a part of the data
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os_pwrite = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(room.os, "pwrite", full)
        queue.add(result(2))
        assert queue.is_full
        queue.add(result(3))

    assert take_all(queue, rows=1) == [1, 2, 3]
    assert not queue.is_full
    assert len(printed) == 1
    assert "No space left" in printed[0]


def test_batch_is_bounded_in_rows_and_bytes_and_has_at_least_one_result(opened):
    queue = opened(Queue(Room(), weigh))
    for step, size in enumerate((10, 10, 10, 5_000, 10), 1):
        queue.add(result(step, size))

    taken = [[one.step for one in queue.take(2, 4_000)[0]] for _ in range(4)]

    assert taken == [[1, 2], [3], [4], [5]]


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(buffer, "BATCH_ROWS", 7)
    monkeypatch.setattr(buffer, "BATCH_BYTES", 30_000)
    monkeypatch.setattr(room, "READ_BYTES", 3_000)


def fail(*_args, **_more):
    raise StorageBusy("The database is away.")


def hold_trial(database, study, **options):
    claim = SimulatedWorker(database, study).ask().claimed
    return HeldAttempt(database, study, claim, **options)


@pytest.mark.parametrize("reply_is_lost", [False, True])
def test_all_waiting_results_are_stored_when_a_trial_ends_after_an_outage(
    database, monkeypatch, small_batches, reply_is_lost
):
    study = new_study(database)
    trial = hold_trial(database, study, room=Room(memory_bytes=5_000))
    real = held.report

    def stored_without_reply(*args, **more):
        real(*args, **more)
        fail()

    trial.add(result(1))
    with monkeypatch.context() as patch:
        patch.setattr(held, "report", stored_without_reply if reply_is_lost else fail)
        with pytest.raises(StorageBusy):
            trial.flush(patience_s=0.0)
        for step in range(2, 101):
            trial.add(result(step))
        assert not trial.buffer.is_full

    trial.end(Reason.COMPLETED)
    trial.close()

    assert trial_of(database, study, 0).state is State.TERMINATED
    stored = live_results(database, study, 0)
    assert [one.step for one in stored] == list(range(1, 101))
    assert repr(stored[-1].metrics["list"]) == repr(ODD["list"])


def test_background_flush_stores_one_batch(database, small_batches):
    study = new_study(database)
    trial = hold_trial(database, study)
    for step in range(1, 101):
        trial.add(result(step))

    trial.flush(patience_s=0.0, batches=1)

    assert len(live_results(database, study, 0)) == 7
    assert trial.buffer.needs_flushes


def test_verdict_to_stop_drops_the_results_that_still_wait(database, small_batches):
    study = new_study(database, rules=read_rules(["loss<=0.1"]))
    trial = hold_trial(database, study)
    for step in range(1, 101):
        trial.add(result(step))

    trial.flush()
    assert len(trial.buffer) == 0
    trial.end(Reason.COMPLETED)

    assert [one.step for one in live_results(database, study, 0)] == list(range(1, 11))


def test_closed_attempt_frees_all_memory_and_disk_that_it_took(database):
    shared = Room()
    study = new_study(database)
    before = dict(shared._left)
    for _ in range(3):
        trial = hold_trial(database, study, room=shared)
        for step in range(1, 11):
            trial.add(result(step))
        trial.flush()
        trial.add(result(11))
        trial.end(Reason.COMPLETED)
        trial.close()

    assert shared._left == before
