"""How long calls are repeated while the database is away, and how long a thread awaits a lock."""

import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import tenacity

from studydb.domain.errors import StorageTransient
from studydb.lease import retries
from studydb.lease.retries import locked_until, retry_until, retry_until_answered


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances with each call and with each wait between two calls."""
    clock = SimpleNamespace(now_s=0.0)

    def wait(seconds):
        clock.now_s += seconds

    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=wait))
    return clock


def fails_after(clock, seconds, begun):
    def call():
        begun.append(clock.now_s)
        clock.now_s += seconds
        raise StorageTransient("away")

    return call


@pytest.mark.parametrize("call_s", [0.0, 0.4, 0.9, 5.0])
def test_last_try_begins_at_the_deadline_at_the_latest(clock, call_s):
    begun = []

    with pytest.raises(TimeoutError, match="did not answer in time"):
        retry_until(1.0, fails_after(clock, call_s, begun))

    assert begun[-1] <= 1.0
    assert 1.0 <= clock.now_s <= 1.0 + call_s


@pytest.mark.parametrize(("n_faults", "call_s", "n_noted"), [(3, 0.1, 0), (1, 3.0, 1), (4, 1.0, 3)])
def test_outage_is_noted_after_two_seconds_and_its_end_is_noted_once(
    clock, n_faults, call_s, n_noted
):
    begun, noted = [], []
    fail = fails_after(clock, call_s, begun)

    def call():
        return "answer" if len(begun) == n_faults else fail()

    assert retry_until_answered(call, on_outage=noted.append) == "answer"

    assert [type(fault) for fault in noted] == [StorageTransient] * n_noted + [type(None)] * (
        n_noted > 0
    )


def test_end_of_an_outage_is_not_noted_if_the_last_try_fails(clock):
    noted, call = [], fails_after(clock, 3.0, [])

    with pytest.raises(StorageTransient):
        retry_until_answered(call, patience_s=10.0, on_outage=noted.append)

    assert noted
    assert None not in noted


def test_waits_between_tries_grow_to_five_seconds(clock):
    begun = []

    with pytest.raises(StorageTransient):
        retry_until_answered(fails_after(clock, 0.0, begun), patience_s=60.0)

    waits = [later - earlier for earlier, later in pairwise(begun)]
    assert waits[0] < 0.5
    assert 4.5 < max(waits) < 5.5
    assert begun[-1] == 60.0


def test_without_patience_there_is_a_single_try(clock):
    begun = []

    with pytest.raises(StorageTransient):
        retry_until_answered(fails_after(clock, 0.0, begun), patience_s=0.0)

    assert begun == [0.0]


def test_wait_for_another_threads_lock_ends_at_the_deadline():
    lock = threading.RLock()
    thread = threading.Thread(target=lock.acquire)  # ends without a release
    thread.start()
    thread.join()

    with pytest.raises(TimeoutError), locked_until(lock, time.monotonic() + 0.1):
        pass


@pytest.mark.parametrize("deadline", [None, 1e12])
def test_lock_is_released_at_the_end_of_the_block(deadline):
    lock = threading.RLock()

    with locked_until(lock, deadline):
        pass

    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert taken == [True]
