"""Calls on two connections to PostgreSQL, where one call waits for a lock of the other call."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from harness import postgres
from harness.arrange import run_together
from harness.interleaver import catch_up, step_by_step
from studydb.db.transaction_block import TransactionBlock

PATIENCE_S = 20.0


@contextmanager
def held_at(owner, name):
    """
    Hold the next call of the function `name` of a class or module.

    Yields two events. `arrived` is set when the call has begun and the server has executed all
    statements that were sent before the call. The call continues when the test sets `go`.
    """
    arrived, go = threading.Event(), threading.Event()
    function = getattr(owner, name)

    def held(*args, **kwargs):
        if not arrived.is_set():
            catch_up()
            arrived.set()
            assert go.wait(PATIENCE_S)
        return function(*args, **kwargs)

    with step_by_step(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, held)
        try:
            yield arrived, go
        finally:
            go.set()


def send_twice(call, first, second, url, *, at=None):
    """
    Run `call(second)` while `call(first)` is held before its COMMIT, or before the function `at`.

    Args:
        at: The arguments `owner` and `name` of `held_at`, which name the function.

    Returns:
        The answers of the two calls, and whether the second call waited for a lock of the first
        call.
    """
    answered = threading.Event()
    with held_at(*at or (TransactionBlock, "_end")) as (arrived, go):

        def send_again():
            assert arrived.wait(PATIENCE_S)
            try:
                return call(second)
            finally:
                answered.set()

        def let_go():
            assert arrived.wait(PATIENCE_S)
            waited = is_waiting_for_a_lock(url, unless=answered)
            go.set()
            return waited

        return run_together([lambda: call(first), send_again, let_go])


WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()"""


def is_waiting_for_a_lock(url, *, unless=None, waiters=1):
    """
    Return True once at least `waiters` connections wait for a lock.

    Return False after 20 s, or if the event `unless` is set first.
    """
    unless = unless or threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    with postgres.connect(url) as watcher:
        while time.monotonic() < deadline and not unless.wait(0.005):
            if watcher.execute(WAITING).fetchone() >= (waiters,):
                return True
    return False


@contextmanager
def kept_waiting(url, call, lock):
    """
    Start a call that waits until the block ends, because another connection has locked a row.

    Args:
        lock: The row, for example "trial WHERE number = 1".
    """
    answered, other = threading.Event(), postgres.connect(url)

    def run():
        try:
            return call()
        finally:
            answered.set()

    with other, ThreadPoolExecutor(1) as pool:
        with other.transaction():
            other.execute(f"SELECT 1 FROM {lock} FOR NO KEY UPDATE")
            future = pool.submit(run)
            assert is_waiting_for_a_lock(url, unless=answered)
            yield
        future.result(PATIENCE_S)


def is_free(url, lock):
    """Whether a row is not locked; `kept_waiting` says how `lock` names the row."""
    with postgres.connect(url) as connection:
        try:
            found = connection.execute(f"SELECT 1 FROM {lock} FOR NO KEY UPDATE NOWAIT").fetchall()
        except psycopg.errors.LockNotAvailable:
            return False
        assert found
        return True
