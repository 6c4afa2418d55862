"""Saying once what a worker waits for, so that nobody takes it for hung."""

import shlex
import threading
from collections.abc import Callable

from studydb.domain.errors import StorageTransient
from studydb.domain.life.states import Status
from studydb.operations.study_progress import StudyProgress


class Notices:
    """What the slots of one worker wait for; a reason is said when it is a new one."""

    def __init__(self, study_name: str, say: Callable[[str], None]) -> None:
        """Wait for nothing yet."""
        self._name, self._say = study_name, say
        self._told: str | None = None
        self._is_away = False
        self._lock = threading.Lock()

    def because(self, progress: StudyProgress) -> None:
        """Say why nothing was claimed, unless that was said last."""
        why = self._why(progress)
        with self._lock:
            if why is None or why == self._told:
                return
            self._told = why
        self._say(why)

    def over(self) -> None:
        """Something was claimed: the same reason is worth a line again."""
        with self._lock:
            self._told = None

    def unanswered(self, error: StorageTransient) -> None:
        """Say that the database does not answer a trial that runs, once per outage."""
        with self._lock:
            was_away, self._is_away = self._is_away, True
        if not was_away:
            self._say(f"training goes on without the database, results wait: {error}")

    def answered(self) -> None:
        """Say that an outage is over."""
        with self._lock:
            was_away, self._is_away = self._is_away, False
        if was_away:
            self._say("the database answers again")

    def _why(self, progress: StudyProgress) -> str | None:
        name = self._name
        match progress.status:
            case Status.PAUSED if progress.pause_reason is not None:
                again = f"`studydb resume {shlex.quote(name)}`"
                return f"study {name!r} has paused itself: {progress.pause_reason}; {again} goes on"
            case Status.PAUSED:
                return f"study {name!r} is paused; waiting for `studydb resume {shlex.quote(name)}`"
            case Status.FINISHED | Status.STOPPED:
                return f"study {name!r} is {progress.status}; waiting in case that changes"
            case _ if not progress.has_room:
                return "waiting: as many trials run as max_concurrent allows"
            case _ if not (progress.has_budget or progress.counts.pending):
                return "waiting: nothing is left to begin while the last trials run"
        return None
