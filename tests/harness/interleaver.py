"""
Runs calls on connections of their own, one statement at a time, in an order drawn from a seed.

Each call has a thread that stops before every statement until it is let go. Whoever then waits for
a row lock is seen in the server's own books, and somebody else is let go meanwhile: a schedule is
as certain as the server is.
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
from studydb.db import Database, connect, engine
from studydb.domain.errors import StorageBusy

PATIENCE_S = 30.0
RETRIES = 5

Call = Callable[[Database], Any]


@dataclass
class Player:
    """A call, its connection, and where it is: "waiting" before a statement, "running", "done"."""

    place: int
    call: Call
    database: Database
    pid: int
    where: str = "running"
    answer: Any = None
    error: BaseException | None = None
    next_statement: str = ""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Played:
    """
    What came of a schedule.

    Attributes:
        answers: Of the calls, in their order; a refusal as its class.
        schedule: Who did what, for the message of a failure.
        faults: What the calls had to be sent again for: deadlocks.
    """

    answers: list[Any]
    schedule: list[str]
    faults: list[str]


_of_thread = threading.local()
"""`sync` awaits what a player's pipeline has sent, where each statement is awaited."""


class Interleaver:
    """A few connections to one PostgreSQL database, and one that watches them."""

    def __init__(self, url: str, *, connections: int = 3) -> None:
        self._databases = [connect(url, connections=1) for _ in range(connections)]
        self._watcher = postgres.connect(url)
        self._news = threading.Condition()

    def close(self) -> None:
        self._watcher.close()
        for database in self._databases:
            database.close()

    def play(self, calls: Sequence[Call], rng: Random, *, clock: Callable[[], datetime]) -> Played:
        """Run calls in an order drawn from `rng`, each to its end."""
        players = [
            Player(place, call, database, _pid_of(database))
            for place, (call, database) in enumerate(zip(calls, self._databases, strict=False))
        ]
        assert len(players) == len(calls)
        for player in players:
            player.database.clock = clock
        schedule: list[str] = []
        threads = [threading.Thread(target=self._run, args=(player,)) for player in players]
        for thread in threads:
            thread.start()
        try:
            self._direct(players, rng, schedule)
        finally:
            self._let_all_go(players)
            for thread in threads:
                thread.join(PATIENCE_S)
        for player in players:
            if player.error is not None:
                raise player.error
        return Played(
            [player.answer for player in players],
            schedule,
            [fault for player in players for fault in player.faults],
        )

    def _direct(self, players: list[Player], rng: Random, schedule: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._settle(players, deadline):
            waiting = [player for player in players if player.where == "waiting"]
            if not waiting:
                continue  # all wait for locks; the server ends the deadlock
            player = rng.choice(waiting)
            schedule.append(f"{player.place}: {player.next_statement[:100]}")
            with self._news:
                player.where = "running"
                self._news.notify_all()

    def _settle(self, players: list[Player], deadline: float) -> bool:
        """Wait until everybody waits for a statement or a lock; False when all are done."""
        while time.monotonic() < deadline:
            with self._news:
                running = [player for player in players if player.where == "running"]
                if not running:
                    return any(player.where != "done" for player in players)
                if self._news.wait(0.002):
                    continue
            if self._are_blocked(running):
                return True
        raise AssertionError("The calls have not come to an end.")

    def _are_blocked(self, running: list[Player]) -> bool:
        pids = [player.pid for player in running]
        query = "SELECT bool_and(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) pid"
        row = self._watcher.execute(query, [pids]).fetchone()
        return row is not None and bool(row[0]) and all(it.where == "running" for it in running)

    def _let_all_go(self, players: list[Player]) -> None:
        with self._news:
            for player in players:
                player.database.observer = None
                player.where = "running" if player.where == "waiting" else player.where
            self._news.notify_all()

    def _run(self, player: Player) -> None:
        player.database.observer = lambda statement: self._wait_for_turn(player, statement)
        try:
            player.answer = outcome_of(lambda: _persist(player))
        except BaseException as error:  # noqa: BLE001  raised again by whoever plays
            player.error = error
        finally:
            player.database.observer = None
            with self._news:
                player.where = "done"
                self._news.notify_all()

    def _wait_for_turn(self, player: Player, statement: str) -> None:
        catch_up()
        with self._news:
            player.where, player.next_statement = "waiting", " ".join(statement.split())
            self._news.notify_all()
            while player.where == "waiting":
                assert self._news.wait(2 * PATIENCE_S)


def _persist(player: Player) -> Any:
    """Call again when the database is busy, as a worker does, but remember what for."""
    while True:
        try:
            return player.call(player.database)
        except StorageBusy as busy:
            player.faults.append(str(busy))
            if len(player.faults) > RETRIES:
                raise


def _pid_of(database: Database) -> int:
    with database.begin(write=False) as txn:
        return int(txn.raw("SELECT pg_backend_pid()")[1][0][0])


def catch_up() -> None:
    """Within `step_by_step`: wait until all that this thread's transaction has sent is carried out."""
    getattr(_of_thread, "sync", engine.no_pipeline)()


@contextmanager
def step_by_step() -> Iterator[None]:
    """
    Let whoever is stopped before a statement wait until those before it were carried out.

    Otherwise the server is at it some time later, and who comes between is left to chance.
    """
    enter, leave = engine.Block._enter_pipeline, engine.Block._leave_pipeline

    def enter_synced(block: engine.Block) -> Callable[[], None]:
        _of_thread.sync = enter(block)
        return _of_thread.sync

    def leave_synced(block: engine.Block) -> None:
        _of_thread.sync = engine.no_pipeline
        leave(block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Block, "_enter_pipeline", enter_synced)
        patch.setattr(engine.Block, "_leave_pipeline", leave_synced)
        yield
