"""The handle of a trial in the user's own loop: `report`, `flush`, `finish`, `fail`, `release`."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from studydb.artifacts.checkpoint_files import CheckpointLike
from studydb.artifacts.checkpoint_records import Saved
from studydb.db.faults import is_of_values
from studydb.domain.errors import CheckpointError, InvalidReport, LeaseLost, UsageError
from studydb.domain.failures import Failure, bounded_failure, failure_of
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result, read_report
from studydb.domain.text.other_tools import missing_attribute, suggesting_keywords
from studydb.domain.user_warnings import warn_user
from studydb.lease.held import HeldAttempt
from studydb.lease.own_checkpoints import OwnCheckpoints

Answered = TypeVar("Answered")

LAST_PATIENCE_S = 5.0
"""
The patience of `give_back` and `fail_by`. It also holds for the `release` of a trial whose `with`
block was ended by KeyboardInterrupt or another error that is no subclass of `Exception`.
"""


class OwnTrial:
    """
    A trial that this process runs itself, and a context manager that ends the trial.

    If this object is dropped or the interpreter ends, the trial is flushed and given back.

    Attributes:
        number: The trial's number within its study; the first is 0.
        params: The proposed or enqueued parameters.
        config: `params`, with the values that a person has changed, and the study's constants.
        seed: A seed for random numbers; it is the same in every attempt at the trial.
        uuid: The trial's UUID.
        name, tags: The name and the tags that people gave the trial; None and () if they gave none.
        attempt: The number of this attempt at the trial, from 1.
        checkpoint: The checkpoint to start from, with `.step`, and `.to_dict()` or `.path`; None to
            start from scratch.
        start_step: The step of that checkpoint; 0 to start from scratch.
    """

    def __init__(
        self,
        held: HeldAttempt,
        *,
        metric: str,
        checkpoints: OwnCheckpoints,
        find_directory: Callable[[], Path],
        forget: Callable[[HeldAttempt], None],
        drop: Callable[[HeldAttempt], None],
        loop: object,
    ) -> None:
        """
        Wrap an attempt and restore its checkpoint; called by `Study.ask`.

        Args:
            find_directory: Returns the path of `directory`, without making the directory.
            forget: Called when the attempt has ended, or has lost its trial.
            drop: Called, in any thread, if this handle is dropped before the trial has ended.
            loop: The loop, which would end if it were dropped; kept here until the trial ends.

        Raises:
            HostError, LeaseLost, StorageTransient, UsageError: See `OwnCheckpoints.restore`.
        """
        claim = held.claim
        self.number, self.uuid = claim.lease.number, claim.uuid
        self.name, self.tags = claim.name, claim.tags
        self._find_directory = find_directory
        self.attempt = claim.lease.attempt
        self.params: Mapping[str, Any] = claim.params
        self.config: Mapping[str, Any] = claim.config
        self.seed = claim.seed
        self.checkpoint = checkpoints.restore()
        self.start_step = 0 if self.checkpoint is None else self.checkpoint.step
        held.begin_after(self.start_step)
        self._checkpoints = checkpoints
        self._loop: object = loop
        self._held, self._metric, self._forget = held, metric, forget
        self._began_s = time.monotonic()
        self._pid = os.getpid()
        self._ended = False
        self._reporting = threading.RLock()
        # Python may call `drop` in any thread at any line, so `drop` takes no lock. A thread of the
        # loop gives the attempt back later.
        self._finalizer = weakref.finalize(self, drop, held)
        self._finalizer.atexit = False

    @property
    def directory(self) -> Path:
        """
        The trial's own directory on this host, made when it is first used; see `Trial.directory`.

        Raises:
            OSError: The directory cannot be made.
        """
        directory = self._find_directory()
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    @suggesting_keywords
    def report(self, metrics: Mapping[str, Any], checkpoint: CheckpointLike | None = None) -> bool:
        """
        Report the metrics of one step, and save the given checkpoint, which contains this step.

        The metrics are buffered for about a second, unless the scheduler or a stop rule judges this
        step. `flush` makes them durable. With a checkpoint, the call returns when result and
        checkpoint are stored. If the store fails or the study's quota refuses the checkpoint, the
        call warns (at most once a minute), training continues, and the older checkpoint stays.

        Args:
            metrics: The study's metric and any others. `training_iteration` is the step; if it is
                missing, the step is the last step + 1. `done=True` completes the trial.
            checkpoint: A dict, or the path of a directory, which is copied.

        Returns:
            False once the trial has ended; then stop training it.

        Raises:
            LeaseLost: Another worker has the trial; discard the run.
            InvalidReport: The study's metric is missing or not a number, or the step does not rise.
            CheckpointError: The dict cannot be pickled, or the directory cannot be copied.
            UsageError: The checkpoint is neither a dict nor a path; or the key file, which signs
                checkpoints, cannot be used; or this process is a fork of the process that asked.
            NotAllowed: The study's loop was closed before, so the trial was given back.
            StorageTransient: The database did not answer for 15 minutes.
        """
        self._check_process()
        with self._reporting:
            if self._ended:
                return False
            held = self._held
            result = self._read(metrics)
            if (warning := held.rule_warning(result)) is not None:
                warn_user(warning)
            prepared = None if checkpoint is None else self._checkpoints.prepare(checkpoint)
            due = not held.refuses_results and held.add(result)
            if prepared is not None and not held.is_lost:
                self._save(prepared, result.step)
            elif due or held.must_stop:
                self._guarded(held.flush)
            if held.verdict is not None:
                self._end(Reason.PREEMPTED)
            elif result.is_last:
                self._end(Reason.COMPLETED)
            return not self._ended

    def _read(self, metrics: Mapping[str, Any]) -> Result:
        held = self._held
        return read_report(
            metrics,
            metric=self._metric,
            last_step=held.buffer.last_step,
            rises_from=held.buffer.rises_from,
            time_total_s=held.claim.time_total_s + time.monotonic() - self._began_s,
        )

    def _save(self, prepared: bytes | Path, step: int) -> None:
        """
        Flush the results and save a checkpoint; if the store fails, record its error.

        If the lease is lost before the bytes are stored, the bytes that were sent are deleted. Once
        they are stored, `record` decides, because the checkpoint's row may be stored, too.
        """
        try:
            saved = self._store(prepared, step)
        except BaseException:
            self._checkpoints.delete_upload()
            raise
        if saved is not None:
            self._guarded(lambda: self._checkpoints.record(saved))

    def _store(self, prepared: bytes | Path, step: int) -> Saved | None:
        """Store a checkpoint's bytes; if the store fails, record its error and return None."""
        try:
            upload = self._guarded(lambda: self._checkpoints.begin(step=step))
            return self._checkpoints.store(prepared, step=step, upload=upload)
        except CheckpointError as cause:
            error = cause
            self._guarded(self._held.flush)
            self._guarded(lambda: self._checkpoints.record_error(error))
            return None

    def flush(self) -> None:
        """
        Make the reported results durable.

        Raises:
            LeaseLost: Another worker has the trial.
        """
        self._check_process()
        with self._reporting:
            if not self._ended:
                self._guarded(self._held.flush)

    def finish(self) -> None:
        """
        End the trial as completed, or as the scheduler, a rule, a limit or a person has decided.

        Raises:
            LeaseLost: Another worker has the trial.
            InvalidReport: This attempt began without a checkpoint and has reported nothing. The
                attempt has ended as failed.
        """
        self._finish()

    def _finish(self, patience_s: float | None = None) -> None:
        held = self._held
        has_no_result = held.buffer.rises_from == 0 and self.checkpoint is None
        if has_no_result and not self._ended and not held.must_stop:
            error = InvalidReport(
                f"This attempt at trial {self.number} was finished without a report of "
                f"{self._metric!r}. Call "
                f"trial.report({{{self._metric!r}: …}}) after each step."
            )
            self._end(Reason.FAILED, _failure(error), patience_s)
            raise error
        self._end(Reason.COMPLETED, patience_s=patience_s)

    def fail(self, error: BaseException | str) -> None:
        """
        End this attempt as failed; the trial runs again if `max_failures` and `retry` allow it.

        Raises:
            LeaseLost: This attempt does not hold the trial any more.
        """
        self._end(Reason.FAILED, _failure(error))

    def release(self) -> None:
        """
        Give the trial back, so that any worker may continue it; this does not count as a failure.

        Raises:
            LeaseLost: This attempt does not hold the trial any more.
        """
        self._end(Reason.PREEMPTED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Finish the trial; after an `Exception`, `fail` it; after any other error, `release` it.

        After LeaseLost, nothing is written. If Ctrl-C interrupts this, the trial is ended within
        seconds. If that fails, a thread gives the trial back, although the handle still exists.
        """
        try:
            self._end_by(error)
        except Exception:
            raise
        except BaseException:
            try:
                with suppress(Exception):
                    self._end_by(error, LAST_PATIENCE_S)
            finally:
                if not self._ended:
                    self._finalizer()
            raise

    def _end_by(self, error: BaseException | None, patience_s: float | None = None) -> None:
        """End the trial as the `with` block has ended: with or without an error."""
        if error is None:
            self._finish(patience_s)
        elif isinstance(error, LeaseLost):
            self._close()
        elif isinstance(error, Exception):
            self._end_quietly(Reason.FAILED, _failure(error), patience_s)
        else:
            self._end_quietly(Reason.PREEMPTED, None, patience_s=LAST_PATIENCE_S)

    def _guarded(self, write: Callable[[], Answered]) -> Answered:
        try:
            return write()
        except LeaseLost:
            self._close()
            raise
        except CheckpointError:  # the trial continues although the store failed
            raise
        except Exception as error:
            self._fail_by(error)
            raise

    def _fail_by(self, error: Exception) -> None:
        """End the attempt as failed if its values caused the error: each later send would fail."""
        if is_of_values(error) and fail_by(self._held, error):
            self._close()

    def _end(
        self, outcome: Reason, failure: Failure | None = None, patience_s: float | None = None
    ) -> None:
        self._check_process()
        with self._reporting:
            if self._ended:
                return
            try:
                end = partial(self._held.end, outcome, failure=failure, patience_s=patience_s)
                self._guarded(end)
            except Exception:
                raise
            except BaseException:
                if self._held.is_over:  # Ctrl-C came after the end was stored
                    self._close()
                raise
            self._close()

    def _end_quietly(
        self, outcome: Reason, failure: Failure | None, patience_s: float | None = None
    ) -> None:
        with suppress(Exception):  # the user's own error is raised and says more
            self._end(outcome, failure, patience_s)

    def _close(self) -> None:
        # Each step runs even if Ctrl-C interrupts an earlier step: a trial that is not forgotten
        # would be held for ever. The callback that was added last runs first.
        with ExitStack() as steps:
            steps.callback(self._checkpoints.remove_copy)
            steps.callback(self._finalizer.detach)
            steps.callback(self._forget, self._held)
            self._ended = True
        self._loop = None

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"Trial {self.number} belongs to the process that asked for it, not to its fork. "
                "Report in that process, or ask for a trial in the fork."
            )

    if not TYPE_CHECKING:  # so that a type checker finds wrong names

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; the message translates names of other tools into studydb's."""
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running"
        return f"<Trial {self.number}, attempt {self.attempt}, {state}>"


def _failure(error: BaseException | str) -> Failure:
    if isinstance(error, BaseException):
        return failure_of(error)
    return bounded_failure(Failure("Error", str(error)))


def give_back(held: HeldAttempt, forget: Callable[[HeldAttempt], None]) -> None:
    """Flush and release a trial whose handle was dropped or not made, or whose loop is closing."""
    try:
        held.end(Reason.PREEMPTED, patience_s=LAST_PATIENCE_S)
    except Exception as error:  # noqa: BLE001  no caller is left to catch it
        if is_of_values(error):
            fail_by(held, error)
    finally:
        forget(held)


def fail_by(held: HeldAttempt, error: Exception) -> bool:
    """End an attempt as failed because its values caused an error; return whether it has ended."""
    try:
        held.fail(error, patience_s=LAST_PATIENCE_S)
    except LeaseLost:
        return True
    except Exception:  # noqa: BLE001  the caller has `error`; the lease expires
        return False
    return True
