"""
A user's process as a worker: its row, its connections, its heartbeat and its flushing thread.

The threads have a reference to this worker, but none to the `OwnLoop` that asks for trials. So when
the user has dropped the loop and its trials, the flushing thread can end the worker.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from uuid import uuid4

from studydb.db import connect
from studydb.domain.errors import StudydbError
from studydb.domain.records import Claim, Study
from studydb.domain.resources import Capacity
from studydb.domain.roles import Role
from studydb.lease.acquire import Acquirer
from studydb.lease.buffer import FLUSH_S
from studydb.lease.fitting import Fitting
from studydb.lease.heartbeat import Heartbeat
from studydb.lease.held import HeldAttempt
from studydb.lease.own_trial import LAST_PATIENCE_S, give_back
from studydb.lease.retries import locked_until, retry_until
from studydb.lease.rule_judge import AskRule
from studydb.lease.upload_collector import UploadCollector
from studydb.operations.recover import recover, recover_host
from studydb.operations.register import leave, register
from studydb.operations.writing import write
from studydb.processes import is_alive, this_process
from studydb.version import __version__


class OwnWorker:
    """
    Renews the leases of an own loop, flushes its results, and gives back dropped trials.

    A trial is dropped if Python deletes the trial's handle before the trial has ended.

    Attributes:
        pid: The id of the process that registered.
        id: The worker's id.
        database: The connections of the loop and its trials.
        heartbeat: Renews the leases, through another connection.
        fitting: Counts the resources of the held trials.
        acquirer: Claims trials for the loop.
        acquiring: A thread that searches for a trial, or looks whether there is one, holds this
            lock until the trial is held.
        unended: A list with the number of the first dropped trial; empty if there is none. A trial
            whose lease was lost does not count.
        is_abandoned: Whether Python has deleted the loop and the handles of its trials, so that the
            flushing thread closes this worker.
    """

    def __init__(
        self,
        storage: str,
        study: Study,
        *,
        lease_s: float,
        ask_rule: AskRule | None,
        capacity: Capacity,
        at_close: Callable[[], None],
        deadline: float | None,
    ) -> None:
        """Register this process; start the heartbeat and the flushing thread; see `OwnLoop`."""
        self.pid = os.getpid()
        self._study, self._lease_s, self._ask_rule = study, lease_s, ask_rule
        self._capacity, self._at_close = capacity, at_close
        self.database, self._heartbeat_database = connect(storage), connect(storage, connections=1)
        try:
            self.id = self._enter(deadline)
        except BaseException:
            self._close_connections()
            raise
        self.fitting = Fitting(
            self.database, study, worker_id=self.id, capacity=capacity, takes_turns=False
        )
        self.acquirer = Acquirer(
            self.database, study, worker_id=self.id, lease_s=lease_s, fitting=self.fitting
        )
        self.acquiring = threading.RLock()
        self._settled_token = self.acquirer.token
        self._uploads = UploadCollector(self._heartbeat_database, study)
        self.is_abandoned = False
        self.unended: list[int] = []
        self._dropped: SimpleQueue[HeldAttempt] = SimpleQueue()
        self._closed, self._closing = threading.Event(), threading.RLock()
        self.heartbeat = Heartbeat(
            self._heartbeat_database,
            study,
            worker_id=self.id,
            lease_s=lease_s,
            after_beat=self._after_beat,
        )
        atexit.register(self.close)
        try:
            self.heartbeat.start()
            threading.Thread(
                target=self._flush_and_give_back, name="studydb-flush", daemon=True
            ).start()
        except BaseException:  # Ctrl-C, or the host has no thread left
            self.close()
            raise

    def _enter(self, deadline: float | None) -> int:
        uuid = uuid4().hex
        worker_id = retry_until(
            deadline, lambda: write(self.database, lambda: self._register(uuid), role=Role.WORKER)
        )
        process = this_process()
        retry_until(
            deadline,
            lambda: recover_host(self.database, self._study, process=process, is_alive=is_alive),
        )
        return worker_id

    def _register(self, uuid: str) -> int:
        return register(
            self.database,
            self._study,
            uuid=uuid,
            process=this_process(),
            slots=1,
            lease_s=self._lease_s,
            version=__version__,
            capacity=None if self._capacity.is_unlimited else self._capacity,
        )

    def _after_beat(self) -> None:
        recover(self._heartbeat_database, self._study)
        self._uploads.look()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the process that registered."""
        return os.getpid() != self.pid

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that no more trials are claimed."""
        return self._closed.is_set()

    def acquire(self, deadline: float | None) -> Claim | None:
        """
        Acquire a trial; the caller holds `acquiring`, and calls `settle` once it handles the trial.

        If Ctrl-C or an error comes before `settle`, the next call finds the same trial.

        Raises:
            TimeoutError, StorageTransient: See `retry_until`.
        """
        token = None if self._is_settled else self.acquirer.token
        if token is not None:
            self.acquirer.send_again()
        claim = retry_until(deadline, self.acquirer.acquire)
        if claim is None:
            if token is not None:  # the trial was recovered
                self.fitting.ledger.release(token)
            self.settle()
        return claim

    @property
    def _is_settled(self) -> bool:
        return self._settled_token == self.acquirer.token

    def settle(self) -> None:
        """Note that the trial of the last search is handled, or that the search got none."""
        self._settled_token = self.acquirer.token

    def hold(self, claim: Claim) -> HeldAttempt:
        """Begin to renew the lease of a claimed trial."""
        held = HeldAttempt(self.database, self._study, claim, ask_rule=self._ask_rule)
        self.heartbeat.add(held)
        return held

    def forget(self, held: HeldAttempt) -> None:
        """Stop renewing an attempt's lease, and count the attempt's resources as free."""
        self.heartbeat.discard(held)
        self.fitting.release(held.claim)

    def drop(self, held: HeldAttempt) -> None:
        """
        Let the flushing thread give back an attempt whose handle was dropped.

        Python calls this in any thread at any line, so it takes no lock.
        """
        held.is_dropped = True
        if not self.unended and not held.is_lost:
            self.unended.append(held.lease.number)
        self._dropped.put(held)

    def abandon(self) -> None:
        """
        Let the flushing thread close this worker, because the loop and its trials were dropped.

        Python calls this in any thread at any line, so it takes no lock.
        """
        self.is_abandoned = True

    def close(self) -> None:
        """Give back all held trials, and record that this process has ended."""
        if self.is_foreign:
            return
        with self._closing:  # at exit, wait if the flushing thread closes this worker
            if self._closed.is_set():
                return
            # Each step runs even if Ctrl-C interrupts an earlier step: a heartbeat that is not
            # stopped would keep the trials for ever. The callback that was added last runs first.
            with ExitStack() as steps:
                steps.callback(self._at_close)
                steps.callback(atexit.unregister, self.close)
                steps.callback(self._close_connections)
                steps.callback(self._leave)
                steps.callback(self.heartbeat.stop)
                steps.callback(self._give_back_held)
                self._closed.set()
                self._hold_unsettled()

    def _hold_unsettled(self) -> None:
        """
        Hold the trial that a search has claimed, if Ctrl-C or an error came before `settle`.

        If the trial is not found, its lease expires, and a sweep recovers the trial.
        """
        deadline = time.monotonic() + LAST_PATIENCE_S
        # Another thread that searches now holds its trial itself before it releases the lock.
        with suppress(StudydbError, TimeoutError), locked_until(self.acquiring, deadline):
            if not self._is_settled:
                claim = retry_until(deadline, self.acquirer.find_claimed)
                if claim is not None:
                    self.hold(claim)

    def _give_back_held(self) -> None:
        for held in self.heartbeat.held():
            give_back(held, self.forget)

    def _leave(self) -> None:
        with suppress(StudydbError):
            leave(self.database, worker_id=self.id)

    def _close_connections(self) -> None:
        self.database.close()
        self._heartbeat_database.close()

    def _flush_and_give_back(self) -> None:
        """Until this worker is closed, flush overdue results and give back dropped trials."""
        while not self._closed.wait(FLUSH_S / 4):
            while not self._dropped.empty():
                give_back(self._dropped.get(), self.forget)
            if self.is_abandoned:
                with suppress(Exception):  # no caller is left to catch it
                    self.close()
                return
            for held in self.heartbeat.held():
                if held.buffer.is_overdue() and not held.must_stop:
                    with suppress(Exception):  # the handle's next call raises the error
                        held.flush(patience_s=0.0)
