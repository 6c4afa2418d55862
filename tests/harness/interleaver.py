"""
Runs concurrent calls one statement at a time, in an order that a seed determines.

Each call has a connection and a thread. The thread stops before every statement until its call is
scheduled. While a call waits for a lock (pg_blocking_pids), another call is scheduled. The same
seed gives the same schedule.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

import pytest

from harness import postgres
from harness.actions import outcome_of
from studydb.db import Database, connect
from studydb.db.transaction import no_pipeline
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import StorageBusy

PATIENCE_S = 30.0
RETRIES = 5

Call = Callable[[Database], Any]


@dataclass
class Client:
    """A call and its connection; `state` is "running", "waiting" (for its turn) or "done"."""

    place: int
    call: Call
    database: Database
    pid: int
    state: str = "running"
    answer: Any = None
    error: BaseException | None = None
    next_statement: str = ""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """
    The result of a schedule.

    Attributes:
        answers: The answers in the order of the calls; for a call that raised a `StudydbError`, the
            error's class. `run` raises any other error.
        schedule: Which call sent which statement, in the order of sending.
        faults: The messages of `StorageBusy` errors, such as deadlocks. A call that raised one was
            made again, at most `RETRIES` times.
    """

    answers: list[Any]
    schedule: list[str]
    faults: list[str]


_pipeline = threading.local()
"""`_pipeline.sync()` waits until the server has executed what this thread has sent."""


class Interleaver:
    """Four connections to one PostgreSQL database, and a connection that watches the others."""

    def __init__(self, url: str) -> None:
        self.databases = [connect(url, connections=1) for _ in range(4)]
        self._watcher = postgres.connect(url)
        self._changed = threading.Condition()

    def close(self) -> None:
        self._watcher.close()
        for database in self.databases:
            database.close()

    def run(self, calls: Sequence[Call], rng: Random, *, clock: Callable[[], datetime]) -> Result:
        """Run all calls; `rng` chooses which call sends its next statement."""
        clients = [
            Client(place, call, database, _pid_of(database))
            for place, (call, database) in enumerate(zip(calls, self.databases, strict=False))
        ]
        assert len(clients) == len(calls)
        for client in clients:
            client.database.clock = clock
        schedule: list[str] = []
        threads = [threading.Thread(target=self._run, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            self._schedule(clients, rng, schedule)
        finally:
            self._release_all(clients)
            for thread in threads:
                thread.join(PATIENCE_S)
        for client in clients:
            if client.error is not None:
                raise client.error
        return Result(
            [client.answer for client in clients],
            schedule,
            [fault for client in clients for fault in client.faults],
        )

    def _schedule(self, clients: list[Client], rng: Random, schedule: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._settle(clients, deadline):
            waiting = [client for client in clients if client.state == "waiting"]
            if not waiting:
                continue  # all unfinished calls wait for locks; the server ends the deadlock
            client = rng.choice(waiting)
            schedule.append(f"{client.place}: {client.next_statement[:100]}")
            with self._changed:
                client.state = "running"
                self._changed.notify_all()

    def _settle(self, clients: list[Client], deadline: float) -> bool:
        """Wait until each call is done, or waits for its turn or a lock; False if all are done."""
        while time.monotonic() < deadline:
            with self._changed:
                running = [client for client in clients if client.state == "running"]
                if not running:
                    return any(client.state != "done" for client in clients)
                if self._changed.wait(0.002):
                    continue
            if self._are_blocked(running):
                return True
        raise AssertionError("The calls have not come to an end.")

    def _are_blocked(self, running: list[Client]) -> bool:
        pids = [client.pid for client in running]
        query = "SELECT bool_and(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) pid"
        row = self._watcher.execute(query, [pids]).fetchone()
        return (
            row is not None
            and bool(row[0])
            and all(client.state == "running" for client in running)
        )

    def _release_all(self, clients: list[Client]) -> None:
        with self._changed:
            for client in clients:
                client.database.observer = None
                client.state = "running" if client.state == "waiting" else client.state
            self._changed.notify_all()

    def _run(self, client: Client) -> None:
        client.database.observer = lambda statement: self._wait_for_turn(client, statement)
        try:
            client.answer = outcome_of(lambda: _retry_while_busy(client))
        except BaseException as error:  # noqa: BLE001  raised again by `run`
            client.error = error
        finally:
            client.database.observer = None
            with self._changed:
                client.state = "done"
                self._changed.notify_all()

    def _wait_for_turn(self, client: Client, statement: str) -> None:
        catch_up()
        with self._changed:
            client.state, client.next_statement = "waiting", " ".join(statement.split())
            self._changed.notify_all()
            while client.state == "waiting":
                assert self._changed.wait(2 * PATIENCE_S)


def _retry_while_busy(client: Client) -> Any:
    """Make a call; if the database is busy, repeat it up to `RETRIES` times. Record the errors."""
    while True:
        try:
            return client.call(client.database)
        except StorageBusy as busy:
            client.faults.append(str(busy))
            if len(client.faults) > RETRIES:
                raise


def _pid_of(database: Database) -> int:
    with database.begin(write=False) as txn:
        return int(txn.raw("SELECT pg_backend_pid()")[1][0][0])


def catch_up() -> None:
    """Within `step_by_step`: wait until the server has executed what this thread has sent."""
    getattr(_pipeline, "sync", no_pipeline)()


@contextmanager
def step_by_step() -> Iterator[None]:
    """
    In this block, `catch_up` waits until the server has executed the calling thread's statements.

    Without this wait, the server might execute these statements after a later statement of another
    client.
    """
    enter, leave = TransactionBlock._enter_pipeline, TransactionBlock._leave_pipeline

    def enter_synced(block: TransactionBlock) -> Callable[[], None]:
        _pipeline.sync = enter(block)
        return _pipeline.sync

    def leave_synced(block: TransactionBlock) -> None:
        _pipeline.sync = no_pipeline
        leave(block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionBlock, "_enter_pipeline", enter_synced)
        patch.setattr(TransactionBlock, "_leave_pipeline", leave_synced)
        yield
