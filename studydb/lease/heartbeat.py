"""The heartbeat: one daemon thread that renews what a process holds."""

import random
import threading
from collections.abc import Callable

from studydb.db import Database
from studydb.domain.records import renewal_s
from studydb.lease.held import HeldAttempt
from studydb.operations.renew import renew

RETRY_S = 1.0


class Heartbeat:
    """
    Renews leases every 2/9 of their length, jittered, and hands each holder its verdict.

    Without the database it retries without end: the fence, not this thread, protects the data.

    Attributes:
        request: What people ask of this worker: `DRAIN` or None.
        trouble: Why the last beat failed; None if it did not.
    """

    def __init__(
        self,
        database: Database,
        *,
        worker_id: int,
        lease_s: float,
        also: Callable[[], None] | None = None,
    ) -> None:
        """
        Prepare a heartbeat.

        Args:
            database: Used by this thread alone, so that no flush keeps a renewal waiting.
            also: Called after each beat: sweeps, flushes.
        """
        self._database, self._worker_id, self._also = database, worker_id, also
        self._period_s = renewal_s(lease_s)
        self._held: dict[str, HeldAttempt] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.request: str | None = None
        self.trouble: Exception | None = None

    def start(self) -> None:
        """Start beating."""
        self._thread = threading.Thread(target=self._run, name="studydb-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; leases that still hold run out by themselves."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=RETRY_S)

    def add(self, held: HeldAttempt) -> None:
        """Renew a trial from now on."""
        with self._lock:
            self._held[held.lease.token] = held

    def discard(self, held: HeldAttempt) -> None:
        """Renew a trial no longer."""
        with self._lock:
            self._held.pop(held.lease.token, None)

    def held(self) -> list[HeldAttempt]:
        """What is being renewed."""
        with self._lock:
            return list(self._held.values())

    def beat(self) -> None:
        """
        Renew once.

        Raises:
            StorageTransient: The database did not answer.
        """
        asked = self.held()
        renewal = renew(
            self._database, worker_id=self._worker_id, held=[one.lease for one in asked]
        )
        self.request = renewal.request
        for one in asked:
            if one.lease.token in renewal.held:
                one.renewed(renewal.held[one.lease.token])
            else:
                one.lost()

    def _run(self) -> None:
        wait_s = self._jittered_s()
        while not self._stopped.wait(wait_s):
            wait_s = self._jittered_s()
            try:
                self.beat()
                if self._also is not None:
                    self._also()
            except Exception as error:  # noqa: BLE001  a beat that fails is tried again, always
                self.trouble = error
                wait_s = min(RETRY_S, wait_s)
            else:
                self.trouble = None

    def _jittered_s(self) -> float:
        return self._period_s * random.uniform(0.8, 1.0)  # noqa: S311  jitter, no secret
