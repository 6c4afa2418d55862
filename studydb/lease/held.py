"""One attempt in the process that holds its lease: buffer, flush, save, end."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from studydb.artifacts import store_part
from studydb.db import Database
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.errors import CheckpointError, LeaseLost, NotAllowed, StorageTransient
from studydb.domain.failures import Failure, failure_of
from studydb.domain.life.decisions import Action, Answer, Verdict
from studydb.domain.life.ending import Ending
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.retention import Keep
from studydb.domain.life.rules import rule_warning
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.domain.records import Batch, Claim, Lease, Study
from studydb.lease.buffer import Buffer
from studydb.lease.retries import PATIENCE_S, ignore, never, retry_until_answered
from studydb.lease.room import UNLIMITED, Room
from studydb.lease.rule_judge import AskRule, RuleJudge
from studydb.lease.scheduler_judge import SchedulerJudge
from studydb.lease.study_folders import make_study_folder
from studydb.operations.fail import fail
from studydb.operations.finish import finish
from studydb.operations.record_event import record_event
from studydb.operations.report import report
from studydb.operations.ruling import live_results
from studydb.operations.save import save
from studydb.operations.uploads import begin_upload

Answered = TypeVar("Answered")

STORE_ERROR_PAUSE_S = 60.0
"""The least time between two events of one attempt about checkpoints that cannot be stored."""

_MISFIT = (
    "The trial was not run. studydb never writes such a row, so another program has written it: "
    "find out who wrote this row."
)


def refusal(claim: Claim) -> Failure | None:
    """Return the failure of a trial whose params or config do not fit the space; else None."""
    if claim.misfit is None:
        return None
    return Failure("studydb.InvalidSpec", f"{claim.misfit} {_MISFIT}")


class HeldAttempt:
    """
    A claimed trial; threads may share it.

    Every method that writes can raise these errors. LeaseLost: the attempt no longer holds the
    trial. StorageTransient: the database did not answer in time, and the buffer is kept.
    NotAllowed: the attempt's end was sent or stored before.

    Attributes:
        verdict: The verdict that this process last learned; None while the attempt may continue.
        is_lost: Whether the attempt no longer holds the trial. Then its writes change nothing.
        is_ending: Whether the attempt's end is being written, or was written. The end gives up the
            lease, so a renewal that finds no lease does not set `is_lost` any more.
        is_dropped: Whether the user's program has dropped its handle before the attempt's end, so
            that the trial is given back.
    """

    def __init__(
        self,
        database: Database,
        study: Study,
        claim: Claim,
        *,
        patience_s: float = PATIENCE_S,
        give_up: Callable[[], bool] = never,
        on_outage: Callable[[StorageTransient | None], None] = ignore,
        room: Room = UNLIMITED,
        ask_rule: AskRule | None = None,
    ) -> None:
        """
        Hold a claim.

        Args:
            on_outage: Called while a request waits for the database; see `retry_until_answered`.
            room: Limits the memory and disk for results that wait.
            ask_rule: Asks a custom stop rule; None if the study has none.
        """
        self._database, self._study = database, study
        self._patience_s, self._give_up, self._on_outage = patience_s, give_up, on_outage
        self._flushing = threading.RLock()
        self.claim = claim
        self.buffer = Buffer(study, claim, room=room)
        self.next_decision_step = claim.next_decision_step
        self.verdict: Verdict | None = None
        self.is_lost = False
        self.is_ending = False
        self.is_dropped = False
        self._last: Batch | None = None
        self._is_over = False
        self._next_store_error_s = 0.0
        self._is_rule_checked = False
        self._rule_judge = RuleJudge.of(study, claim, ask_rule, self._awaits_no_rule)
        self._scheduler_judge = SchedulerJudge.of(study)

    @property
    def lease(self) -> Lease:
        return self.claim.lease

    @property
    def is_over(self) -> bool:
        """Whether this process knows that the end of the attempt is stored."""
        return self._is_over

    def begin_after(self, step: int) -> None:
        """Do the work of `Buffer.begin_after`, and set the step of the next decision."""
        next_decision_step = self._study.scheduler.next_decision_step(self.lease.bracket, step)
        self.buffer.begin_after(step, next_decision_step=next_decision_step)
        self.next_decision_step = next_decision_step

    @property
    def refuses_results(self) -> bool:
        """Whether further results are dropped: the trial is lost, or a verdict refuses them."""
        return self.is_lost or (self.verdict is not None and self.verdict.refuses_results)

    @property
    def must_stop(self) -> bool:
        """Whether the user's code must end, because of a verdict or because the trial is lost."""
        return self.verdict is not None or self.is_lost

    def add(self, result: Result) -> bool:
        """Buffer a result; True if the result must be flushed before the next step begins."""
        self._check_open()
        return self.buffer.add(result)

    def _check_open(self) -> None:
        if self._last is not None:
            number = self.lease.number
            raise NotAllowed(
                f"This process has ended its attempt at trial {number}: the trial was finished, "
                "has failed, or was given back, for example because the study was closed. "
                "Ask for another trial."
            )

    def rule_warning(self, result: Result) -> str | None:
        """Return a warning, once per attempt, if a result lacks the metric of a stop rule."""
        if self._is_rule_checked or not self._study.rules:
            return None
        warning = rule_warning(self._study.rules, result, objective=self._study.objective)
        self._is_rule_checked = warning is not None
        return warning

    def flush(
        self,
        *,
        patience_s: float | None = None,
        batches: int | None = None,
        may_shorten: bool = False,
    ) -> None:
        """
        Store the buffered results; they are durable when this call returns.

        Results after the verdict of a scheduler, a rule or a limit are dropped.

        Args:
            batches: How many batches to send at most; None for all (hundreds after an outage).
            may_shorten: See `SchedulerJudge.send`.
        """
        with self._flushing:
            self._check_open()
            n_sent = 0
            while not self.is_lost and n_sent != batches and (batch := self.buffer.take()):
                judged = self._judged(batch, patience_s)
                answer = self._send_batch(
                    lambda sent: report(self._database, self._study, lease=self.lease, batch=sent),
                    judged,
                    patience_s,
                    may_shorten=may_shorten,
                )
                self.buffer.acknowledge(batch, answer)
                if self._rule_judge is not None:
                    self._rule_judge.stored(batch)
                if self._scheduler_judge is not None:
                    self._scheduler_judge.stored()
                self._obey(answer)
                n_sent += 1
                judge = self._scheduler_judge
                if self.refuses_results or (judge is not None and judge.has_dropped):
                    self.buffer.drop()
            if self.is_lost:
                raise LeaseLost(number=self.lease.number, attempt=self.lease.attempt)

    def begin_upload(self, uuid: str, url: str) -> None:
        """
        Make the study's folder in a store if the folder is missing; record that an upload begins.

        Raises:
            CheckpointError: `make_study_folder` cannot or must not make the folder.
        """
        self._check_open()
        store = store_part(url)
        try:
            self._send(lambda: make_study_folder(self._database, self._study, store), None)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} Training continues, and any earlier checkpoint is kept."
            ) from error
        self._send(lambda: begin_upload(self._database, lease=self.lease, uuid=uuid, url=url), None)

    def save(
        self, checkpoint: Checkpoint, data: bytes | None = None, keep: Keep | None = None
    ) -> list[Checkpoint]:
        """
        Flush the results, then record a checkpoint.

        Args:
            data: The bytes of an inline checkpoint; None if the bytes are in a store of files.
            keep: The study's current setting `keep`; None for the setting that was read with the
                study.

        Returns:
            The older checkpoints that are no longer kept; the caller deletes their bytes.

        Raises:
            CheckpointError: The checkpoint does not fit into the study's quota.
        """
        with self._flushing:  # so that no other thread ends the attempt before the row is stored
            self.flush()
            return self._send(
                lambda: save(
                    self._database,
                    lease=self.lease,
                    checkpoint=checkpoint,
                    data=data,
                    keep=keep or self._study.keep,
                    objective=self._study.objective,
                ),
                None,
            )

    def record_store_error(self, error: str) -> bool:
        """
        Record that a checkpoint could not be stored, at most once a minute.

        A full disk may repeat the error for hours.

        Returns:
            Whether the error was recorded.
        """
        now_s = time.monotonic()
        if now_s < self._next_store_error_s:
            return False
        self._next_store_error_s = now_s + STORE_ERROR_PAUSE_S
        self.record_event(EventKind.CHECKPOINT_FAILED, error)
        return True

    def record_event(self, kind: EventKind, error: str) -> None:
        """Record an event of the trial, with an error's text."""
        token = uuid4().hex  # one token, so that retries record one event
        data = {"error": error}
        self._send(
            lambda: record_event(
                self._database, lease=self.lease, kind=kind, data=data, token=token
            ),
            None,
        )

    def end(
        self,
        outcome: Reason,
        *,
        failure: Failure | None = None,
        process: AttemptProcess | None = None,
        patience_s: float | None = None,
    ) -> Ending | None:
        """
        End the attempt with its last flush; nothing can be written afterwards.

        Returns:
            The trial's next state; None if the same end was stored before and its reply was lost.
        """
        self.is_ending = True
        may_shorten = outcome is not Reason.COMPLETED
        with self._flushing:
            if self._is_over:
                self._check_open()
            while self._last is None and self.buffer.needs_flushes:
                self.flush(patience_s=patience_s, batches=1, may_shorten=may_shorten)
            last = self._last = self._last or self.buffer.take(even_empty=True)
            assert last is not None
            judged = self._judged(last, patience_s)
            ending = self._send_batch(
                lambda sent: finish(
                    self._database,
                    self._study,
                    lease=self.lease,
                    outcome=outcome,
                    batch=sent,
                    tally=self.buffer.tally,
                    failure=failure,
                    process=process,
                ),
                judged,
                patience_s,
                may_shorten=may_shorten,
            )
            self._is_over = True
            return ending

    def fail(
        self,
        error: Exception,
        *,
        process: AttemptProcess | None = None,
        patience_s: float | None = None,
    ) -> Ending | None:
        """
        End the attempt as failed, without the results that are not stored yet.

        Args:
            error: Why the results could not be stored or the attempt could not be ended.
        """
        self.is_ending = True
        with self._flushing:
            if self._is_over:
                self._check_open()
            last = self._last = self._last or self.buffer.take(even_empty=True)
            assert last is not None
            ending = self._send(
                lambda: fail(
                    self._database,
                    self._study,
                    lease=self.lease,
                    flush_no=last.flush_no,
                    failure=failure_of(error, whole=True),
                    process=process,
                ),
                patience_s,
            )
            self._is_over = True
            return ending

    def close(self) -> None:
        """Drop the results that wait, and free their memory and disk."""
        self.buffer.close()

    def renewed(self, verdict: Verdict | None) -> None:
        """Set the verdict of a renewal or answer, but keep a verdict that refuses results."""
        if self.verdict is None or not self.verdict.refuses_results:
            self.verdict = verdict

    def lost(self) -> None:
        """Set `is_lost`, because a renewal did not find the lease, unless `is_ending` is True."""
        if not self.is_ending:
            self.is_lost = True

    def _judged(self, batch: Batch, patience_s: float | None) -> Batch:
        """Ask the study's custom stop rules about a batch, while no transaction is open."""
        if self._rule_judge is None or self.refuses_results:
            return batch

        def read(before: int, limit: int) -> list[Result]:
            return self._send(
                lambda: live_results(self._database, lease=self.lease, before=before, limit=limit),
                patience_s,
            )

        return self._rule_judge.judged(batch, read)

    def _awaits_no_rule(self) -> bool:
        """Whether the trial is lost or stopped, so that its end does not wait for a stop rule."""
        return self.is_lost or (self.verdict is not None and self.verdict.action is Action.STOP)

    def _send_batch(
        self,
        call: Callable[[Batch], Answered],
        batch: Batch,
        patience_s: float | None,
        *,
        may_shorten: bool = False,
    ) -> Answered:
        """Send a batch, and ask a custom scheduler for the decisions that the transaction needs."""
        judge = self._scheduler_judge
        if judge is None:
            return self._send(lambda: call(batch), patience_s)
        return self._send(lambda: judge.send(call, batch, may_shorten=may_shorten), patience_s)

    def _obey(self, answer: Answer) -> None:
        self.next_decision_step = answer.next_decision_step
        self.renewed(answer.verdict)

    def _send(self, call: Callable[[], Answered], patience_s: float | None) -> Answered:
        try:
            return retry_until_answered(
                call,
                patience_s=self._patience_s if patience_s is None else patience_s,
                give_up=self._give_up,
                on_outage=self._on_outage,
            )
        except LeaseLost:
            self.is_lost = True
            raise
