"""The guard against a worker that fails whatever it is given."""

import threading

from studydb.domain.life.states import Reason

FAILED_LIMIT = 3
"""So many first trials of a worker that fail, while others succeed elsewhere, end the worker."""


class FirstTrials:
    """How the first trials of a worker ended; shared by its slots."""

    def __init__(self) -> None:
        """Suspect nothing."""
        self._failed: set[int] = set()
        self._is_cleared = False
        self._lock = threading.Lock()

    def all_failed(self, number: int, reason: Reason) -> bool:
        """Count one that has ended; True once enough trials have failed and nothing else ended."""
        with self._lock:
            if reason is Reason.FAILED:
                self._failed.add(number)
            elif reason is not Reason.PREEMPTED:
                self._is_cleared = True
            return not self._is_cleared and len(self._failed) >= FAILED_LIMIT
