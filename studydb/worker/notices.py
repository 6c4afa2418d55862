"""
Limits how often a worker prints the same kind of line.

Such lines say that the database is away, that a transaction was slow, what the study's best value
is, and why the slots wait.
"""

import shlex
import threading
import time
from collections.abc import Callable

from studydb.domain.errors import StorageTransient
from studydb.domain.life.states import Status
from studydb.operations.study_progress import StudyProgress

BEST_EVERY_S = 1.0
"""The shortest time between two lines of one worker that name the study's best value."""

SLOW_EVERY_S = 60.0
"""The shortest time between two lines of one worker about a slow transaction."""


class Notices:
    """Prints outages, slow transactions, and each new reason for which a worker's slots wait."""

    def __init__(self, study_name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = study_name, say
        self._last: str | None = None
        self._is_away = False
        self._best_due_s = self._slow_due_s = 0.0
        self._lock = threading.Lock()

    def is_best_due(self) -> bool:
        """Whether the next line should name the best value; True at most once a second."""
        with self._lock:
            if time.monotonic() < self._best_due_s:
                return False
            self._best_due_s = time.monotonic() + BEST_EVERY_S
            return True

    def nothing_claimed(self, progress: StudyProgress, *, is_too_small: bool = False) -> None:
        """
        Print why nothing was claimed, unless the last printed reason is the same.

        Args:
            is_too_small: Whether trials ask for resources, and this worker runs no trial. Then the
                trials that wait probably ask for more than the worker has.
        """
        why = self._why(progress)
        if why is None and is_too_small and not progress.can_claim:
            why = (
                "waiting: no trial can start on this worker now; "
                f"`studydb status {shlex.quote(self._name)}` says what trials ask for"
            )
        with self._lock:
            if why is None or why == self._last:
                return
            self._last = why
        self._say(why)

    def claimed(self) -> None:
        """Note a claim; when nothing can be claimed afterwards, the reason is printed again."""
        with self._lock:
            self._last = None

    def outage(self, error: StorageTransient) -> None:
        """
        Print that running trials continue without the database.

        In an outage, only the first call of this method or of `trial_waits` prints.
        """
        with self._lock:
            was_away, self._is_away = self._is_away, True
        if not was_away:
            self._say(f"training continues without the database, results are buffered: {error}")

    def trial_waits(self, error: StorageTransient | None) -> None:
        """Print that a trial waits for the database; if `error` is None, do as `answered` does."""
        if error is None:
            self.answered()
            return
        with self._lock:
            was_away, self._is_away = self._is_away, True
        if not was_away:
            self._say(f"the database does not answer; a trial waits to store its results: {error}")

    def answered(self) -> None:
        """Print that an outage is over, if there was one."""
        with self._lock:
            was_away, self._is_away = self._is_away, False
        if was_away:
            self._say("the database answers again")

    def slow_transaction(self, operation: str, seconds: float) -> None:
        """Print that a transaction was slow, at most once a minute."""
        with self._lock:
            if time.monotonic() < self._slow_due_s:
                return
            self._slow_due_s = time.monotonic() + SLOW_EVERY_S
        self._say(
            f"a transaction ({operation}) took {seconds:.1f} s instead of milliseconds: the "
            "database or its disk is busy, or another transaction holds a lock for long"
        )

    def _why(self, progress: StudyProgress) -> str | None:
        name = self._name
        match progress.status:
            case Status.PAUSED if progress.pause_reason is not None:
                resume = f"`studydb resume {shlex.quote(name)}`"
                return (
                    f"study {name!r} has paused itself: {progress.pause_reason}; to go on: {resume}"
                )
            case Status.PAUSED:
                return f"study {name!r} is paused; waiting for `studydb resume {shlex.quote(name)}`"
            case Status.FINISHED | Status.STOPPED:
                return f"study {name!r} is {progress.status}; waiting in case that changes"
            case _ if not progress.has_room:
                return "waiting: max_concurrent trials are running"
            case _ if not (progress.has_budget or progress.counts.pending):
                return "waiting: the last trials are running, and no other trial can start now"
        return None
