"""
Ctrl-C at any call inside of a transaction, and a fork beside a transaction of another thread.

Afterwards the database is not locked, and all connections of the pool can be used.
"""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from harness.arrange import change, rows

from studydb.db import connections, database
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import StorageUnreachable

FOLDER = str(Path(database.__file__).parent)


class CtrlC:
    """Raises KeyboardInterrupt at the n-th call of a function of `studydb.db`, counted from 1."""

    def __init__(self, nth):
        self.left = nth

    def __enter__(self):
        sys.setprofile(self._see)

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        # An exception in `__del__` is printed instead of raised.
        if event != "call" or frame.f_code.co_name == "__del__":
            return
        if frame.f_code.co_filename.startswith(FOLDER):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.fixture
def opened_twice(opened, storage_url):
    change(opened(storage_url), "CREATE TABLE mark (n integer)")
    return opened(storage_url), opened(storage_url)


def insert(database):
    with database.begin() as txn:
        txn.raw("INSERT INTO mark VALUES (1)")


def test_ctrl_c_at_any_call_of_a_transaction_leaves_no_lock_and_no_lost_connection(opened_twice):
    interrupted, other = opened_twice
    errors = []  # kept with their frames, as a notebook keeps the last error
    nth = 0
    while len(errors) == nth:
        nth += 1
        # psycopg may raise another error in place of the KeyboardInterrupt.
        try:
            with CtrlC(nth):
                insert(interrupted)
        except (KeyboardInterrupt, StorageUnreachable) as error:
            errors.append(error)

        assert rows(interrupted, "SELECT 1") == [(1,)]  # closes the interrupted connection
        change(other, "DELETE FROM mark")
        assert not interrupted.connections._in_use
    assert len(errors) > 10


def test_block_that_was_not_ended_is_rolled_back_when_it_is_garbage_collected(opened_twice):
    interrupted, other = opened_twice
    block = TransactionBlock(interrupted, write=True, durable=True, single=False, snapshot=False)
    block.__enter__().raw("INSERT INTO mark VALUES (1)")
    del block

    change(other, "INSERT INTO mark VALUES (2)")

    assert rows(other, "SELECT n FROM mark") == [(2,)]


def test_nested_blocks_of_a_thread_use_two_connections(opened_twice):
    one, _ = opened_twice
    with one.begin() as txn:
        assert rows(one, "SELECT count(*) FROM mark") == [(0,)]
        txn.raw("INSERT INTO mark VALUES (1)")
    assert rows(one, "SELECT count(*) FROM mark") == [(1,)]


def test_transaction_of_a_waiting_generator_goes_on_beside_other_transactions(opened_twice):
    one, _ = opened_twice

    def pages():
        with one.begin(write=False) as txn:
            for number in range(3):
                yield txn.raw(f"SELECT {number}")[1]

    found = []
    for page in pages():
        found += page
        assert rows(one, "SELECT 7") == [(7,)]
        thread = threading.Thread(target=rows, args=(one, "SELECT 8"))
        thread.start()
        thread.join()
    assert found == [(0,), (1,), (2,)]


def test_transactions_of_many_threads_are_not_taken_for_interrupted_ones(opened_twice):
    one, _ = opened_twice
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    wrong = []

    def read():
        for _ in range(60):
            with one.begin(write=False) as txn:
                found = sum(number for number in range(20) if txn.raw("SELECT 1")[1] == [(1,)])
            if found != 190:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def fork_that_writes(database):
    """Fork a process that inserts 2 and exits with 0; return its pid."""
    pid = os.fork()
    if pid == 0:
        with suppress(Exception):
            change(database, "INSERT INTO mark VALUES (2)")
            os._exit(0)
        os._exit(1)
    return pid


def test_forked_process_can_write_although_a_thread_of_its_parent_was_writing(opened_twice):
    one, _ = opened_twice
    writes, ends = threading.Event(), threading.Event()

    def write():
        with one.begin() as txn:
            txn.raw("INSERT INTO mark VALUES (1)")
            writes.set()
            ends.wait(0.3)  # on SQLite the fork waits for the end of this transaction

    thread = threading.Thread(target=write)
    thread.start()
    assert writes.wait(10)
    pid = fork_that_writes(one)
    ends.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(rows(one, "SELECT n FROM mark")) == [(1,), (2,)]
    assert not connections._held


def test_connection_that_ctrl_c_left_in_use_is_released_after_the_frame_of_its_call_was_freed(
    opened_twice,
):
    """
    The frame identifies the call that uses a connection, and not the frame's address.

    Python may give the address of a freed frame to the frame of a later call.
    """
    interrupted, _ = opened_twice
    is_done, nth = False, 0
    while not is_done:
        nth += 1
        with suppress(KeyboardInterrupt, StorageUnreachable), CtrlC(nth):
            insert(interrupted)
            is_done = True
        insert(interrupted)

        assert not interrupted.connections._in_use
    assert nth > 10


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_ctrl_c_while_a_fork_waits_is_raised_after_the_fork(opened_twice):
    one, _ = opened_twice
    writes = threading.Event()

    def write():
        with one.begin() as txn:
            txn.raw("INSERT INTO mark VALUES (1)")
            writes.set()
            while not one.connections._n_waiting:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            connections._interrupted.wait(3)

    thread = threading.Thread(target=write)
    thread.start()
    assert writes.wait(10)
    pid = fork_that_writes(one)
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(10)
    thread.join()
    with ThreadPoolExecutor() as pool:  # the lock of the pool is free for other threads
        assert pool.submit(rows, one, "SELECT 1").result(10) == [(1,)]

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(rows(one, "SELECT n FROM mark")) == [(1,), (2,)]


def test_fork_holds_all_pools_while_another_thread_makes_pools():
    """The list of the pools must not change while a fork reads it."""
    stops = threading.Event()

    def make_pools():
        while not stops.is_set():
            connections.Connections(object, limit=1, url="", waits_at_fork=True)

    thread = threading.Thread(target=make_pools)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(1000):
            connections._before_fork()
            pools = [one for one in connections._of_this_process if one.waits_at_fork]
            is_held = set(pools) <= set(connections._held[-1])
            connections._after_fork_in_parent()
            assert is_held
    finally:
        stops.set()
        thread.join()
        sys.setswitchinterval(interval)
