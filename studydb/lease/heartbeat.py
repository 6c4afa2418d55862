"""The heartbeat: one daemon thread that renews the leases of a process."""

import random
import threading
from collections.abc import Callable
from time import monotonic

from studydb.db import Database
from studydb.domain.records import Study, renewal_s
from studydb.domain.study_spec import StudySpec
from studydb.lease.held import HeldAttempt
from studydb.operations.renew import is_requested, renew

RETRY_S = 1.0

LOOK_S = 4.0
"""While trials are held, the heartbeat checks for people's new requests at least this often."""
RENEWALS_PER_LIMIT = 20
SHORTEST_PERIOD_S = 1.0


def renewal_period_s(lease_s: float, study: StudySpec) -> float:
    """
    Return the seconds between two renewals.

    A renewal finds out whether a limit of time is reached. So if a study has such a limit, its
    workers renew at least 20 times within the shortest limit, but at most once a second.
    """
    often_s = max(SHORTEST_PERIOD_S, study.limits.shortest_s / RENEWALS_PER_LIMIT)
    return min(renewal_s(lease_s), often_s)


class Heartbeat:
    """
    Renews leases once per period (2/9 of a lease, or less); tells attempts their verdicts.

    A period is 20 s by default. Between two renewals, the heartbeat checks every 3 to 4 s, by a
    single statement, for new requests of people to a held trial, its study or this process. After
    a request, the heartbeat renews at once, and the renewal returns the verdicts.

    While the database is away, a renewal is tried every second.

    Attributes:
        request: A person's request to this worker: `DRAIN` or None.
        error: The error of the newest check or renewal, or of the work after the renewal; None if
            all of them succeeded.
    """

    def __init__(
        self,
        database: Database,
        study: Study,
        *,
        worker_id: int,
        lease_s: float,
        after_beat: Callable[[], object] = lambda: None,
    ) -> None:
        """Take a `database` that no flush uses, so that no flush delays a renewal."""
        self._database, self._study = database, study
        self._worker_id, self._after_beat = worker_id, after_beat
        self._period_s = renewal_period_s(lease_s, study)
        self._held: dict[str, HeldAttempt] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.request: str | None = None
        self.error: Exception | None = None

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="studydb-heartbeat", daemon=True)
        thread.start()
        self._thread = thread  # after the start: `stop` cannot wait for a thread that never started

    def stop(self) -> None:
        """Stop the thread; leases that are still held expire later."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=RETRY_S)

    def add(self, held: HeldAttempt) -> None:
        """Begin to renew a trial's lease."""
        with self._lock:
            self._held[held.lease.token] = held

    def discard(self, held: HeldAttempt) -> None:
        """Stop renewing a trial's lease."""
        with self._lock:
            self._held.pop(held.lease.token, None)

    def held(self) -> list[HeldAttempt]:
        with self._lock:
            return list(self._held.values())

    def beat(self) -> None:
        """
        Renew all leases once, read a person's request to this worker, and tell attempts the answer.

        An attempt learns its verdict, or that its lease is lost.

        Raises:
            StorageTransient: The database did not answer.
        """
        attempts = self.held()
        leases = [attempt.lease for attempt in attempts]
        renewal = renew(self._database, self._study, worker_id=self._worker_id, held=leases)
        self.request = renewal.request
        for attempt in attempts:
            if attempt.lease.token in renewal.held:
                attempt.renewed(renewal.held[attempt.lease.token])
            else:
                attempt.lost()

    def _run(self) -> None:
        wait_s = _jittered(self._period_s)
        while not self._stopped.is_set():
            try:
                self._wait(wait_s)
                if self._stopped.is_set():
                    return
                wait_s = _jittered(self._period_s)
                self.beat()
                self._after_beat()
            except Exception as error:  # noqa: BLE001  a renewal that fails is tried again
                self.error = error
                wait_s = min(RETRY_S, wait_s)
            else:
                self.error = None

    def _wait(self, wait_s: float) -> None:
        """Wait until a renewal is due, a person has made a new request, or `stop` is called."""
        end_s = monotonic() + wait_s
        while (left_s := end_s - monotonic()) > LOOK_S:
            if self._stopped.wait(_jittered(LOOK_S)) or self._is_requested():
                return
        self._stopped.wait(max(0.0, left_s))

    def _is_requested(self) -> bool:
        leases = [attempt.lease for attempt in self.held() if not attempt.refuses_results]
        return bool(leases) and is_requested(
            self._database, held=leases, worker_id=self._worker_id, known=self.request
        )


def _jittered(wait_s: float) -> float:
    return wait_s * random.uniform(0.8, 1.0)  # noqa: S311  jitter, no secret
