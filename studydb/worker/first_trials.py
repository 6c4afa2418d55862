"""Detects a host where every trial fails."""

import threading

from studydb.domain.life.states import Reason

FAILED_LIMIT = 3
"""
If the study's setting `guard` is on, a worker ends when its first 3 trials have all failed while
other trials of the study ended without an error.
"""


class FirstTrials:
    """How the first trials of a worker ended; shared by its slots."""

    def __init__(self) -> None:
        self._failed: set[int] = set()
        self._is_cleared = False
        self._lock = threading.Lock()

    def all_failed(self, number: int, reason: Reason) -> bool:
        """Note how a trial ended; tell whether 3 trials failed and all others were preempted."""
        with self._lock:
            if reason is Reason.FAILED:
                self._failed.add(number)
            elif reason is not Reason.PREEMPTED:
                self._is_cleared = True
            return not self._is_cleared and len(self._failed) >= FAILED_LIMIT
