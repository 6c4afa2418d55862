"""Two connections that get in each other's way, on PostgreSQL."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from harness import postgres
from harness.arrange import at_once
from harness.interleaver import catch_up, step_by_step
from studydb.db.engine import Block

PATIENCE_S = 20.0


@contextmanager
def held_at(owner, name):
    """
    Let the next call of a function wait; two events: it is there, it may go on.

    Whatever its transaction has sent was carried out before the first.
    """
    there, go = threading.Event(), threading.Event()
    function = getattr(owner, name)

    def held(*args, **kwargs):
        if not there.is_set():
            catch_up()
            there.set()
            assert go.wait(PATIENCE_S)
        return function(*args, **kwargs)

    with step_by_step(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, held)
        try:
            yield there, go
        finally:
            go.set()


def send_twice(call, ghostly, fresh, url, *, at=None):
    """
    The answers of both sends, and whether the second waited for the first.

    The first is held where it commits, or `at` another function: what it sends from there on has
    not arrived yet.
    """
    answered = threading.Event()
    with held_at(*at or (Block, "_end")) as (there, go):

        def send_again():
            assert there.wait(PATIENCE_S)
            try:
                return call(fresh)
            finally:
                answered.set()

        def let_go():
            assert there.wait(PATIENCE_S)
            waited = is_waiting_for_a_lock(url, unless=answered)
            go.set()
            return waited

        return at_once([lambda: call(ghostly), send_again, let_go])


def is_waiting_for_a_lock(url, *, unless=None, waiters=1):
    """Whether so many connections come to wait for a lock, before the event `unless`."""
    unless = unless or threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    with postgres.connect(url) as watcher:
        while time.monotonic() < deadline and not unless.wait(0.005):
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            if watcher.execute(query).fetchone() >= (waiters,):
                return True
    return False


@contextmanager
def kept_waiting(url, call, lock):
    """
    Run a call while a rival holds a lock; within the block it waits for it.

    Args:
        lock: The condition of a row, as in "trial WHERE number = 1".
    """
    answered, rival = threading.Event(), postgres.connect(url)

    def run():
        try:
            return call()
        finally:
            answered.set()

    with rival, ThreadPoolExecutor(1) as pool:
        with rival.transaction():
            rival.execute(f"SELECT 1 FROM {lock} FOR NO KEY UPDATE")
            future = pool.submit(run)
            assert is_waiting_for_a_lock(url, unless=answered)
            yield
        future.result(PATIENCE_S)


def is_free(url, lock):
    """Whether nobody has locked a row."""
    with postgres.connect(url) as connection:
        try:
            found = connection.execute(f"SELECT 1 FROM {lock} FOR NO KEY UPDATE NOWAIT").fetchall()
        except psycopg.errors.LockNotAvailable:
            return False
        assert found
        return True
