"""Keep results until the next flush, so that not every step needs a commit."""

import threading
import time
from collections.abc import Callable

from studydb.domain.life.decisions import Answer
from studydb.domain.life.rules import RuleWatch
from studydb.domain.metrics import Result, Summary, weigh
from studydb.domain.records import Batch, Claim, Study
from studydb.domain.tally import Tally
from studydb.lease.room import UNLIMITED, Queue, Room

FLUSH_S = 1.0
FLUSH_ROWS = 200
FLUSH_BYTES = 1 << 20
"""Results are flushed after `FLUSH_S`, or as soon as `FLUSH_ROWS` or `FLUSH_BYTES` wait."""

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
"""The limits of a batch. They exist because the trial's row is locked while a batch is stored."""


class Buffer:
    """
    The results of one attempt that are not stored yet; threads may share a buffer.

    A batch keeps its number and rows from `take` to `acknowledge`, so that a batch that is sent
    again is unchanged.

    Attributes:
        tally: The tally of the trial's stored results; None if this process does not know them all.
        last_step, rises_from: What `read_report` needs to read the next report.
    """

    def __init__(
        self,
        study: Study,
        claim: Claim,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        room: Room = UNLIMITED,
    ) -> None:
        self._study, self._clock_s = study, clock_s
        self._lock = threading.Lock()
        self._waiting = Queue(room, weigh)
        self._sent: Batch | None = None
        self._sent_bytes = 0
        self._flush_no = 0
        self._watch = RuleWatch(study.rules, study.objective) if study.rules else None
        self._after_step = claim.checkpoint.step if claim.checkpoint else 0
        self._next_decision_step = claim.next_decision_step
        is_first = claim.lease.attempt == 1
        self._summary = Summary() if is_first else None
        self.tally: Tally | None = Tally(study.objective.metric) if is_first else None
        self._oldest_s = 0.0
        self.last_step = self._after_step
        self.rises_from = 0

    def begin_after(self, step: int, *, next_decision_step: int | None) -> None:
        """
        Set the step of the restored checkpoint, 0 without one; call this before the first report.

        The restored checkpoint is older than the claim's if the claim's cannot be restored.
        """
        with self._lock:
            self._after_step = self.last_step = step
            self._next_decision_step = next_decision_step

    def add(self, result: Result) -> bool:
        """Add a result; True if the result must be flushed before the next step begins."""
        with self._lock:
            if not self._waiting.n_waiting:
                self._oldest_s = self._clock_s()
            self._waiting.add(result)
            self.last_step = self.rises_from = result.step
            due, watch = self._next_decision_step, self._watch
            may_hit = watch is not None and watch.may_hit(result)
            starts_over = result.step <= self._after_step  # the next decision step may change
            return (
                starts_over
                or (due is not None and result.step >= due)
                or self._waiting.n_waiting >= FLUSH_ROWS
                or self._waiting.memory_bytes >= FLUSH_BYTES
                or may_hit
            )

    def is_overdue(self) -> bool:
        """Whether a result has waited for `FLUSH_S`, or a batch was sent but not answered."""
        with self._lock:
            waited = self._waiting.n_waiting > 0 and self._clock_s() - self._oldest_s >= FLUSH_S
            return waited or self._sent is not None

    @property
    def is_full(self) -> bool:
        """Whether some results should be stored before another result is added."""
        with self._lock:
            return self._waiting.is_full

    @property
    def needs_flushes(self) -> bool:
        """Whether a batch is unanswered, or one batch may be too small for all waiting results."""
        with self._lock:
            waiting = self._waiting
            return self._sent is not None or waiting.holds_more_than(BATCH_ROWS, BATCH_BYTES)

    def take(self, *, even_empty: bool = False) -> Batch | None:
        """
        Return the unanswered batch; if there is none, make a batch from the first results.

        Returns:
            None if there is no unanswered batch, no result waits, and `even_empty` is False.
        """
        with self._lock:
            if self._sent is None and (self._waiting.n_waiting or even_empty):
                results, self._sent_bytes = self._waiting.take(BATCH_ROWS, BATCH_BYTES)
                self._sent = Batch(self._flush_no + 1, results, self._after_step, self._summary)
            return self._sent

    def acknowledge(self, batch: Batch, answer: Answer) -> None:
        """Drop a batch that is stored, and keep what the answer says for the next batch."""
        with self._lock:
            if self._sent is not batch:
                return
            self._sent = None
            self._waiting.free(self._sent_bytes)
            self._flush_no = batch.flush_no
            self._next_decision_step = answer.next_decision_step
            self._summary = answer.summary
            self._remember(batch, answer.summary)
            if batch.results:
                self._after_step = batch.results[-1].step

    def _remember(self, batch: Batch, summary: Summary | None) -> None:
        """Add a batch's stored results to the tally; drop the tally if their number is unknown."""
        if self.tally is None:
            return
        n_stored = -1 if summary is None else summary.n_results - self.tally.n_results
        if 0 <= n_stored <= len(batch.results):
            self.tally.add(batch.results[:n_stored])
        else:
            self.tally = None

    def drop(self) -> None:
        """
        Drop the results that wait.

        Call this if the lease is lost, a verdict refuses the results, or earlier results were
        dropped.
        """
        with self._lock:
            self._waiting.close()

    def close(self) -> None:
        """Drop all results, including those of an unanswered batch; free their memory and disk."""
        with self._lock:
            if self._sent is not None:  # without this, the room would not get these bytes back
                self._waiting.free(self._sent_bytes)
                self._sent, self._sent_bytes = None, 0
            self._waiting.close()

    def __len__(self) -> int:
        """Count the results that are not acknowledged."""
        with self._lock:
            return self._waiting.n_waiting + (len(self._sent.results) if self._sent else 0)
