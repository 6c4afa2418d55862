"""Poll a study: how long to wait between two looks, and what each look reads."""

import random
from collections.abc import Sequence
from time import monotonic
from typing import Any

from studydb.db import Database
from studydb.domain.records import Study
from studydb.operations.study_progress import StudyProgress, read_progress, read_signs

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.9

RENEWED_S = 30.0
"""The longest time between two reads of the progress of a study that looks unchanged."""

PROMOTION_S = 5.0
"""
The longest time between two reads of the progress if the scheduler promotes trials: the signs do
not show that a report lets another trial be promoted.
"""


class PollInterval:
    """
    The jittered wait before the next look: 0.1 s after a claim, then twice as long each time.

    A wait is about as long as the time since the last claim, but 1.9 s at most, unless another
    limit is given. So an idle worker soon notices the end of a short study.
    """

    def __init__(self, *, longest_s: float = LONGEST_WAIT_S) -> None:
        self._longest_s = longest_s
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest wait; call this after a claim."""
        self._wait_s, self._end_s = FIRST_WAIT_S, 0.0

    def next_s(self) -> float:
        """Return the seconds to wait before the next look."""
        wait_s = self._wait_s * random.uniform(0.9, 1.0)  # noqa: S311  jitter, no secret
        self._wait_s = min(self._wait_s * 2, self._longest_s)
        return wait_s

    def begin(self) -> None:
        """Begin the next wait, and return at once; `is_over` tells when the wait is over."""
        self._end_s = monotonic() + self.next_s()

    @property
    def is_over(self) -> bool:
        """Whether the wait since `begin` is over; True before `begin` and after `reset`."""
        return monotonic() >= self._end_s


class Watch:
    """
    Reads the progress of a study for a process that polls.

    Most reads are a single short statement, `read_signs`. The progress is read if the signs have
    changed. It is also read at intervals, because the signs do not show all changes, such as a
    report in another process that lets a trial be promoted. To read the progress each time would
    cost more: if the scheduler promotes trials, a statement reads all open rungs.

    Attributes:
        request: A person's request to the worker at the last read: `DRAIN` or None.
    """

    def __init__(self, database: Database, study: Study, *, worker_id: int | None = None) -> None:
        """Watch a study for one process; `worker_id` is None if the process is no worker."""
        self._database, self._study, self._worker_id = database, study, worker_id
        self.request: str | None = None
        longest_s = PROMOTION_S if study.scheduler.resumes else RENEWED_S
        self._renewal = PollInterval(longest_s=longest_s)
        self._last: StudyProgress | None = None
        self._signs: tuple[Any, ...] = ()

    def forget(self) -> None:
        """Read the progress next time, even if the signs are unchanged by then."""
        self._last = None

    def reset(self) -> None:
        """Read the progress next time, then at short intervals; call this after a claim."""
        self.forget()
        self._renewal.reset()

    def read(self, *, fits: Sequence[str] | None = None) -> StudyProgress:
        """
        Read the study's progress; its counts may be 30 s old while the signs are the same.

        Args:
            fits: The resource classes whose trials the process can start now; None if every request
                fits.

        Raises:
            UnknownStudy: The study was deleted.
        """
        seen = read_signs(self._database, self._study, worker_id=self._worker_id, fits=fits)
        signs, last, self.request = seen.of_study, self._last, seen.request
        if last is None or signs != self._signs or self._renewal.is_over:
            last = self._last = read_progress(self._database, self._study, fits=fits)
            self._signs = signs
            self._renewal.begin()
        return last  # another thread of an own loop may have set `_last` to None
