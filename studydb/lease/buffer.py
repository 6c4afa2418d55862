"""Results that wait to be flushed together, so that a step does not cost a commit."""

import threading
import time
from collections.abc import Callable

from studydb.domain.decisions import Answer
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch, Claim, Study
from studydb.domain.rules import first_hit

FLUSH_S = 1.0
FLUSH_ROWS = 200
KEPT_NUMBERS = 10_000
"""So much of what was flushed is remembered, so that a trial's end need not read it again."""


class Buffer:
    """
    The unflushed results of one attempt; safe to share among threads.

    A batch that was taken stays the same, number and rows, until it is acknowledged: whoever sends
    it again sends exactly what may have been stored.

    Attributes:
        flushed: All of the trial's results that are stored, as far as its summary needs them; None
            if this attempt has not all.
    """

    def __init__(
        self, study: Study, claim: Claim, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin empty, after the step that was restored."""
        self._study, self._clock_s = study, clock_s
        self._lock = threading.Lock()
        self._waiting: list[Result] = []
        self._sent: Batch | None = None
        self._flush_no = 0
        self._after_step = claim.checkpoint.step if claim.checkpoint else 0
        self._next_decision_step = claim.next_decision_step
        is_first = claim.lease.attempt == 1
        self._summary = Summary() if is_first else None
        self.flushed: list[Result] | None = [] if is_first else None
        self._n_kept = 0
        self._oldest_s = 0.0
        self.last_step = self._after_step
        self.rises_from = 0

    def add(self, result: Result) -> bool:
        """Keep a result; True if it must be flushed before the next step begins."""
        with self._lock:
            if not self._waiting:
                self._oldest_s = self._clock_s()
            self._waiting.append(result)
            self.last_step = self.rises_from = result.step
            due = self._next_decision_step
            return (
                (due is not None and result.step >= due)
                or len(self._waiting) >= FLUSH_ROWS
                or first_hit(self._study.rules, result, study_metric=self._study.metric) is not None
            )

    def is_overdue(self) -> bool:
        """Whether something has waited for `FLUSH_S`, or was sent without an answer."""
        with self._lock:
            waited = bool(self._waiting) and self._clock_s() - self._oldest_s >= FLUSH_S
            return waited or self._sent is not None

    def is_unanswered(self) -> bool:
        """Whether a batch was sent that may or may not have been stored."""
        with self._lock:
            return self._sent is not None

    def take(self, *, even_empty: bool = False) -> Batch | None:
        """The batch to send: the one that lacks an answer, else all that waits."""
        with self._lock:
            if self._sent is None and (self._waiting or even_empty):
                self._sent = Batch(
                    self._flush_no + 1, tuple(self._waiting), self._after_step, self._summary
                )
                self._waiting = []
            return self._sent

    def acknowledge(self, batch: Batch, answer: Answer) -> None:
        """Forget a batch that is stored."""
        with self._lock:
            if self._sent is not batch:
                return
            self._sent = None
            self._flush_no = batch.flush_no
            self._next_decision_step = answer.next_decision_step
            self._summary = answer.summary
            self._remember(batch)
            if batch.results:
                self._after_step = batch.results[-1].step

    def _remember(self, batch: Batch) -> None:
        if self.flushed is None:
            return
        kept = [result.numbers() for result in batch.results]
        self._n_kept += sum(1 + len(result.metrics) for result in kept)
        self.flushed.extend(kept)
        if self._n_kept > KEPT_NUMBERS:
            self.flushed = None

    def __len__(self) -> int:
        """Results that no flush has acknowledged."""
        with self._lock:
            return len(self._waiting) + (len(self._sent.results) if self._sent else 0)
