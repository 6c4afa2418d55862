"""Idle workers as threads: each has a slot's loop and a heartbeat, but starts no processes."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy.random  # noqa: F401  searchers need this module: it is imported once, before the forks

from benchmarks.client import PER_PROCESS, Client
from studydb.domain.life.states import Status
from studydb.domain.records import LEASE_S
from studydb.lease.acquire import PollInterval
from studydb.lease.heartbeat import Heartbeat
from studydb.operations.recover import recover

START_TIMEOUT_S = 120.0
TICK_S = 0.02

_FORK = multiprocessing.get_context("fork")
_ENDS = ("BEGIN", "COMMIT", "ROLLBACK")


class Counters:
    """
    What each idle worker has counted and seen, in memory that all processes share.

    Attributes:
        statements: How many statements each worker has sent, without BEGIN, COMMIT and ROLLBACK.
        claiming: How many of these statements each worker has sent to claim or make a trial.
        paused: Whether the study was PAUSED at each worker's last look: 1 or 0; -1 before any look.
        noticed_s: When `paused` changed last, by the monotonic clock.
    """

    def __init__(self, n: int) -> None:
        self.statements, self.claiming = RawArray("q", n), RawArray("q", n)
        self.paused, self.noticed_s = RawArray("i", [-1] * n), RawArray("d", n)


class IdleWorker:
    """A worker whose study has nothing to do: one thread looks for trials, one is the heartbeat."""

    def __init__(self, url: str, counters: Counters, index: int) -> None:
        self._counters, self._index = counters, index
        self._client = Client(url)
        self._client.database.observer = self._observe
        self._is_claiming = False
        self._heartbeat = Heartbeat(
            self._client.database,
            self._client.study,
            worker_id=self._client.worker_id,
            lease_s=LEASE_S,
            after_beat=partial(recover, self._client.database, self._client.study),
        )

    def _observe(self, sql: str) -> None:
        if sql not in _ENDS:
            self._counters.statements[self._index] += 1
            self._counters.claiming[self._index] += self._is_claiming

    def run(self) -> None:
        """Look for trials for ever, and end each claimed trial at once."""
        self._heartbeat.start()
        poll_interval = PollInterval()
        while True:
            progress = self._client.acquirer.look()
            self._note(is_paused=progress.status is Status.PAUSED)
            if progress.can_claim and self._run_trial():
                poll_interval.reset()
                continue
            time.sleep(poll_interval.next_s())

    def _note(self, *, is_paused: bool) -> None:
        counters, index = self._counters, self._index
        if counters.paused[index] != is_paused:
            counters.noticed_s[index] = time.monotonic()
            counters.paused[index] = is_paused

    def _run_trial(self) -> bool:
        self._is_claiming = True
        claim = self._client.acquirer.acquire()
        self._is_claiming = False
        if claim is not None:
            self._client.finish(claim.lease)
        return claim is not None


@contextmanager
def idle_workers(url: str, n: int) -> Iterator[Counters]:
    """Run `n` idle workers, each with one connection, in a few processes; yield what they count."""
    counters = Counters(n)
    processes = [
        _FORK.Process(target=_several, args=(url, counters, indices), daemon=True)
        for indices in (
            range(first, min(first + PER_PROCESS, n)) for first in range(0, n, PER_PROCESS)
        )
    ]
    try:
        for process in processes:
            process.start()
        await_all(counters, is_paused=False, timeout_s=START_TIMEOUT_S)
        yield counters
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def await_all(counters: Counters, *, is_paused: bool, timeout_s: float) -> None:
    """Wait until all workers have seen that the study is paused, or that it is not paused."""
    deadline_s = time.monotonic() + timeout_s
    while any(seen != is_paused for seen in counters.paused):
        if time.monotonic() > deadline_s:
            raise RuntimeError(
                f"Not all idle workers saw the study's status within {timeout_s:g} s."
            )
        time.sleep(TICK_S)


def _several(url: str, counters: Counters, indices: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leading process handles Ctrl-C
    workers = [IdleWorker(url, counters, index) for index in indices]
    threads: list[Any] = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
