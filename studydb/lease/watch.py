"""Watch a study: how often a process polls it, and how little each poll reads."""

import random
from time import monotonic

from studydb.db import Database
from studydb.domain.records import Study
from studydb.operations.study_progress import StudyProgress, read_again, read_progress

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.5

QUESTION_S = 5.0
"""While a study changes, the scheduler is asked at most once in about this time."""

LAST_QUESTION_S = 15.0
"""An answer of the scheduler is used for this time at most, although the study looks unchanged."""


class PollInterval:
    """
    The jittered wait before the next look: 0.1 s after a trial, then doubled each time.

    A wait is at most 0.1 s longer than twice the time since the last trial, so that an idle worker
    soon notices the end of a short study. The longest wait is 1.5 s, unless another is given.
    """

    def __init__(self, *, longest_s: float = LONGEST_WAIT_S) -> None:
        self._longest_s = longest_s
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest wait; call this after a claim."""
        self._wait_s, self._end_s = FIRST_WAIT_S, 0.0

    def next_s(self) -> float:
        """Return the seconds to wait before the next look."""
        wait_s = self._wait_s * random.uniform(0.75, 1.0)  # noqa: S311  jitter, no secret
        self._wait_s = min(self._wait_s * 2, self._longest_s)
        return wait_s

    def begin(self) -> None:
        """Begin the next wait now, and go on meanwhile; `is_over` tells when it is over."""
        self._end_s = monotonic() + self.next_s()

    @property
    def is_over(self) -> bool:
        """Whether the wait since `begin` is over; also True before the first `begin`."""
        return monotonic() >= self._end_s


class Watch:
    """
    Reads the progress of a study for a process that polls.

    A read is a single statement, which idle workers can send every second. If the scheduler
    promotes trials, its answer needs a second statement, which reads all open rungs. So the
    scheduler is asked again only after a change: a trial was made, has ended or waits at a rung.
    """

    def __init__(self, database: Database, study: Study) -> None:
        self._database, self._study = database, study
        self._questions = PollInterval(longest_s=QUESTION_S)
        self._last: StudyProgress | None = None
        self._last_s = 0.0

    def forget(self) -> None:
        """Ask the scheduler at the next read, because this process has just changed something."""
        self._last = None

    def reset(self) -> None:
        """Ask the scheduler at the next read, and soon after changes; call this after a claim."""
        self.forget()
        self._questions.reset()

    def read(self) -> StudyProgress:
        """
        Read the study's progress.

        Raises:
            UnknownStudy: The study was deleted.
        """
        last = self._last
        if last is None or monotonic() - self._last_s > LAST_QUESTION_S:
            return self._read_all()
        seen = read_again(self._database, self._study, last)
        if seen == last:
            return last
        # An old answer must not make a study at rest look finished.
        if seen.is_at_rest or self._questions.is_over:
            return self._read_all()
        return seen

    def _read_all(self) -> StudyProgress:
        progress = read_progress(self._database, self._study)
        if self._study.scheduler.resumes:
            self._last, self._last_s = progress, monotonic()
            self._questions.begin()
        return progress
