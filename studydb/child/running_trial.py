"""The trial as the user's code sees it: `trial`, `studydb.report`, `config` and `checkpoint`."""

import copy
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from studydb.artifacts.checkpoint_files import CheckpointLike, Restored, prepare
from studydb.child.channel import Channel, FrameError
from studydb.child.checkpoint_saves import CheckpointSaves
from studydb.child.job import Job
from studydb.child.messages import End, FlushAsked, Reported
from studydb.child.sender import Destination, Outcome
from studydb.child.supervisor_connection import SupervisorConnection
from studydb.domain.errors import (
    InvalidReport,
    LeaseLost,
    TrainableError,
    TrialStopped,
    UsageError,
)
from studydb.domain.given_directory import GivenDirectory, UnmadeDirectory
from studydb.domain.life.decisions import Action
from studydb.domain.life.rules import RuleWatch, rule_from_json
from studydb.domain.metrics import STEP, STEPS_END, Result, read_report
from studydb.domain.text.other_tools import missing_attribute, suggesting_keywords
from studydb.report_client import SOCKET
from studydb.trainables import returned_metrics


class RunningTrial:
    """
    One attempt, as the user's code sees it.

    Attributes:
        given_config: The dict that `config` returns. studydb's own code reads this attribute,
            because reading `config` sets `config_was_read`.
        config_was_read: Whether `config` was read.
        number: The trial's number within its study; the first is 0.
        uuid: The trial's UUID, which no trial of another study or database has.
        name, tags: The name and the tags that the trial had when it was claimed; None and () if
            it had none.
        attempt: The number of this attempt at the trial, from 1.
        seed: A seed for random numbers; it is the same in every attempt at the trial.
        checkpoint: The checkpoint to start from; None to start from scratch.
        start_step: The step of that checkpoint; 0 to start from scratch.
        raised_for: Why TrialStopped or LeaseLost was raised; None if neither was raised.
    """

    def __init__(self, job: Job, channel: Channel, checkpoint: Restored | None) -> None:
        self.given_config: dict[str, Any] = copy.deepcopy(dict(job.config))
        self.config_was_read = False
        self.number, self.uuid = job.number, job.trial_uuid
        self.name, self.tags = job.name, job.tags
        self.attempt = job.attempt
        self.seed = job.seed
        self.metric = job.objective.metric
        self.checkpoint = checkpoint
        self.start_step = job.start_step
        self.raised_for: End | None = None
        self.study_name, self.study_uuid = job.study_name, job.to_import.study_uuid
        self.grace_s = job.grace_s
        self.scratch = Path(job.scratch)
        self.runs_in_directory = job.runs_in_directory
        self._directory = Path(job.directory) if job.directory else self.scratch / "directory"
        self._objective = job.objective
        self._watch = RuleWatch(tuple(map(rule_from_json, job.rules)), job.objective)
        self._final_step = job.last_step
        self._supervisor = SupervisorConnection(channel, next_decision_step=job.next_decision_step)
        destination = Destination(
            job.store, job.to_import.study_uuid, job.trial_uuid, job.attempt, job.cache_bytes
        )
        self._saves = CheckpointSaves(
            destination,
            self._supervisor,
            self.scratch,
            inline_limit_bytes=job.inline_limit_bytes,
        )
        self._last_step = job.start_step
        self._rises_from = 0
        self._last: Result | None = None
        self._preempted = False
        self._begun_s = time.monotonic() - job.time_total_s
        self._turn = threading.RLock()
        self._user: int | None = None  # the thread that uses the trial now
        self._pid = os.getpid()
        self._is_over = False

    @property
    def config(self) -> dict[str, Any]:
        """
        The config of the trial; the code may change this dict.

        It has the trial's parameters, with the values that a person has changed, and the study's
        constants.
        """
        self.config_was_read = True
        return self.given_config

    @property
    def directory(self) -> Path:
        """
        The trial's own directory on this host, made when it is first used.

        Later attempts on this host find the files that earlier attempts have left. Attempts on
        other hosts do not, so put into a checkpoint what the next attempt needs. After an attempt
        has lost its lease, and until its process notices that, the process and the next attempt may
        use the directory at the same time. The directory is kept until someone deletes the study
        from this host.

        Raises:
            OSError: The directory cannot be made.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    @suggesting_keywords
    def report(self, metrics: Mapping[str, Any], checkpoint: CheckpointLike | None = None) -> bool:
        """
        Report the metrics of one step, and save a checkpoint that contains this step.

        The call returns immediately, except in four cases. At a step where the trial may be stopped
        or paused, the call waits for the decision. If the first step of an attempt is not after the
        restored checkpoint's step, the call waits until the result is stored. With a checkpoint, if
        the store is a directory or the database, the call waits until result and checkpoint are
        stored. With a checkpoint, if the store is remote, the call waits until the previous
        checkpoint is sent, copies the new one, and returns before the copy is sent; `flush` waits
        until the copy is stored. At the last step, the call itself waits until the new checkpoint
        is stored. If the store fails, training continues and any earlier checkpoint is kept.

        Args:
            metrics: The study's metric and others. `training_iteration` is the step; if it is
                missing, the step is the last step + 1. `done=True` completes the trial.
            checkpoint: A dict, or the path of a directory.

        Returns:
            True, so that the code of an own loop (`while trial.report(…)`) runs here, too.

        Raises:
            InvalidReport: The metrics cannot be stored; InvalidReport is a ValueError.
            UsageError: The checkpoint is neither a dict nor a path, this attempt is over, or this
                process is a fork of the trial's process.
            CheckpointError: The dict cannot be pickled, or the directory is missing or unreadable.
            TrialStopped: The trial is stopped, paused or done, or the worker is stopping: clean up
                and return. Each further `report` saves the given checkpoint (unless the trial is
                done), and raises again.
            LeaseLost: This attempt no longer holds the trial.
        """
        with self._locked():
            if self.raised_for is End.COMPLETED:
                raise TrialStopped(f"Trial {self.number} is done; nothing more is stored.")
            if self.raised_for is not None:
                self._save_after_the_end(metrics, checkpoint)
            result = read_report(
                metrics,
                metric=self.metric,
                last_step=self._last_step,
                rises_from=self._rises_from,
                time_total_s=time.monotonic() - self._begun_s,
            )
            self._supervisor.listen()
            verdict = self._supervisor.verdict
            is_sent = not self._supervisor.lost and not (verdict and verdict.refuses_results)
            if is_sent:
                self._send_with(result, checkpoint)
            elif checkpoint is not None and not self._supervisor.lost:
                self._send_checkpoint(checkpoint, result.step)
            self._last_step = self._rises_from = result.step
            if is_sent and result.is_last and not self._supervisor.lost:
                self.raised_for = End.COMPLETED
                raise TrialStopped(f"Trial {self.number} is done, as its report says.")
            self._raise_if_ended()
            return True

    def save(self, checkpoint: CheckpointLike) -> None:
        """
        Save a checkpoint of the last reported step, and wait until it is stored.

        Unlike `report`, `save` does not raise if the trial is to end. If the attempt has lost its
        lease, nothing is saved.
        """
        with self._locked():
            self._supervisor.listen()
            if not self._supervisor.lost:
                self._send_checkpoint(checkpoint, self._last_step)

    def flush(self) -> None:
        """
        Wait until all reported results and the last checkpoint are stored.

        Raises:
            TrialStopped, LeaseLost: See `report`.
        """
        with self._locked():
            self._supervisor.listen()
            self._raise_if_ended()
            self._saves.wait()
            self._supervisor.ask(FlushAsked(self._supervisor.next_id()))
            self._raise_if_ended()

    def finish(self, returned: Any) -> None:
        """
        Report the metrics that the user's function returned, unless the last report contains them.

        Raises:
            TrainableError: The function started without a checkpoint and neither reported nor
                returned the study's metric; or it returned something that is not metrics.
        """
        if self.raised_for is not None:
            return
        metrics = returned_metrics(returned, self.metric)
        if metrics is not None and not self._repeats_the_last(metrics):
            self.report(metrics)
        if self._last is None and self.checkpoint is None:
            raise TrainableError(
                f"The trainable ended without reporting {self.metric!r}. Call "
                f"studydb.report({{{self.metric!r}: …}}) after each step, or return the value."
            )

    def settle(self) -> None:
        """
        Wait until the last upload has ended, unless the trial is lost or the worker ends.

        Afterwards this process has no sender.
        """
        with suppress(SystemExit):  # the worker has ended, so sending `Ended` will fail, too
            self._saves.settle()

    @property
    def has_reported(self) -> bool:
        """Whether this attempt has reported a result."""
        return self._last is not None

    def check(self) -> None:
        """
        Read what the worker has sent; raise if the trial is to end before its next report.

        A pause waits for the next report, so that no training since the last report is lost.

        Raises:
            TrialStopped, LeaseLost: See `report`.
        """
        with self._locked():
            self._supervisor.listen()
            verdict = self._supervisor.verdict
            if verdict is None or verdict.action is not Action.PAUSE or self.is_preempted:
                self._raise_if_ended()

    def why_ended(self) -> str:
        """Say why TrialStopped or LeaseLost was raised: "stop", "pause", "preempt" or "lost"."""
        verdict = self._supervisor.verdict
        if self.raised_for is End.STOPPED and verdict is not None:
            return "pause" if verdict.action is Action.PAUSE else "stop"
        return {End.LOST: "lost", End.PREEMPTED: "preempt"}.get(
            self.raised_for or End.STOPPED, "stop"
        )

    def close(self) -> None:
        """Refuse further reports; the process may run another trial next."""
        self._is_over = True

    def preempt(self) -> None:
        """Make the next report raise TrialStopped; a signal handler may call this."""
        self._preempted = True

    @property
    def is_preempted(self) -> bool:
        """Whether the trial's process has received a stop signal, or its worker is stopping."""
        return self._preempted or self._supervisor.stopping

    if not TYPE_CHECKING:  # with __getattr__, type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; the message translates names of other tools into studydb's."""
            raise missing_attribute(self, name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Check the process first: a fork may have copied the lock while it was held.
        if os.getpid() != self._pid:
            raise UsageError(
                f"The trial was used in process {os.getpid()}, a fork of the trial's process "
                f"{self._pid}. Send the metrics to the process that runs the trainable."
            )
        if self._is_over:
            raise UsageError(
                f"Trial {self.number} has ended and takes no more reports. If its process now runs "
                "another trial, call studydb.report(), which reports for that trial."
            )
        if self._user == threading.get_ident():
            raise UsageError(
                f"A signal handler used trial {self.number} while the trial was reporting. Set a "
                "flag in the handler, and report in the training loop."
            )
        with self._turn:
            self._user = threading.get_ident()
            try:
                yield
            finally:
                self._user = None

    def _send_with(self, result: Result, checkpoint: CheckpointLike | None) -> None:
        if checkpoint is None or isinstance(checkpoint, UnmadeDirectory):
            self._send(result, (None, None if checkpoint is None else checkpoint.error))
            return
        prepared = prepare(checkpoint)
        if not self._saves.may_upload_during_training or self._is_final(result):
            self._send(result, self._saves.store(prepared, step=result.step))
            return
        self._send(result, (None, None))
        self._saves.store_during_training(
            prepared, step=result.step, is_given=isinstance(checkpoint, GivenDirectory)
        )

    def _is_final(self, result: Result) -> bool:
        """
        Whether the result certainly ends the trial.

        The bytes of such a result's checkpoint are stored before the result is sent; the worker
        stores the checkpoint's row after the result. If the process dies before it has sent the
        result, the checkpoint gets no row, and the trial resumes from an earlier checkpoint. If the
        result were sent first, the trial could be complete without its last checkpoint.
        """
        is_at_end = self._final_step is not None and result.step >= self._final_step
        return result.is_last or is_at_end or self._watch.passes_a_bound(result)

    def _send(self, result: Result, outcome: Outcome) -> None:
        saved, artifact_error = outcome
        decides, may_hit = self._supervisor.next_decision_step, self._watch.may_hit(result)
        starts_over = self._last is None and result.step <= self.start_step
        is_due = starts_over or (decides is not None and result.step >= decides)
        waits = saved is not None or is_due or may_hit
        report = Reported(
            self._supervisor.next_id() if waits else None, result, saved, artifact_error
        )
        try:
            (self._supervisor.ask if waits else self._supervisor.send)(report)
        except FrameError as cause:
            raise InvalidReport(
                f"The report at step {result.step} cannot be sent: {cause}"
            ) from cause
        self._last = result

    def _send_checkpoint(self, checkpoint: CheckpointLike, step: int) -> None:
        if isinstance(checkpoint, UnmadeDirectory):
            outcome: Outcome = None, checkpoint.error
        else:
            outcome = self._saves.store(prepare(checkpoint), step=step)
        self._supervisor.ask(Reported(self._supervisor.next_id(), None, *outcome))

    def _save_after_the_end(
        self, metrics: Mapping[str, Any], checkpoint: CheckpointLike | None
    ) -> None:
        if checkpoint is not None and not self._supervisor.lost:
            named = metrics.get(STEP) if isinstance(metrics, Mapping) else None
            step = self._last_step
            if isinstance(named, int) and step < named < STEPS_END:
                step = named
            self._send_checkpoint(checkpoint, step)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._supervisor.lost:
            self.raised_for = End.LOST
            raise LeaseLost(number=self.number, attempt=self.attempt)
        if (verdict := self._supervisor.verdict) is not None:
            self.raised_for = End.STOPPED
            raise TrialStopped(f"Trial {self.number} ends: {verdict.reason} ({verdict.by}).")
        if self.is_preempted:
            self.raised_for = End.PREEMPTED
            raise TrialStopped(f"Trial {self.number} is preempted; a worker will resume it.")

    def _repeats_the_last(self, metrics: Mapping[str, Any]) -> bool:
        if self._last is None:
            return False
        returned = read_report(metrics, metric=self.metric, last_step=0)
        last = {self.metric: self._last.value, **self._last.metrics}
        same_step = STEP not in metrics or returned.step == self._last.step
        return same_step and all(
            name in last and json.dumps(value) == json.dumps(last[name])
            for name, value in {self.metric: returned.value, **returned.metrics}.items()
        )


_current: RunningTrial | None = None


@contextmanager
def current(trial: RunningTrial) -> Iterator[None]:
    """Let `studydb.report`, `config` and `checkpoint` serve this trial within the block."""
    global _current  # noqa: PLW0603  `studydb.report` has no argument that names the trial
    _current = trial
    try:
        yield
    finally:
        _current = None


def running_study() -> str | None:
    """Return the UUID of the study whose trial runs in this process; None if no trial runs."""
    return None if _current is None else _current.study_uuid


def _connection_of_command() -> ModuleType | None:
    """Return the module that reports over a command's socket; None outside of commands."""
    if not os.environ.get(SOCKET):
        return None
    from studydb.child import command_connection  # noqa: PLC0415  only commands need it

    return command_connection


def config() -> dict[str, Any]:
    """
    Return the config of the trial that runs in this process, or whose command started the process.

    Raises:
        UsageError: No trial runs in this process, and no trial's command started the process.
    """
    if _current is not None:
        return _current.config
    if (command := _connection_of_command()) is not None:
        return dict(command.config())
    raise UsageError("studydb.config() was called outside a trial. Let a worker run the code.")


def checkpoint() -> Restored | None:
    """
    Return the checkpoint from which this attempt starts; None if it starts from scratch.

    Raises:
        UsageError: No trial runs in this process, and no trial's command started the process.
    """
    if _current is not None:
        return _current.checkpoint
    if (command := _connection_of_command()) is not None:
        found: Restored | None = command.checkpoint()
        return found
    raise UsageError("studydb.checkpoint() was called outside a trial. Let a worker run the code.")


@suggesting_keywords
def report(metrics: Mapping[str, Any], checkpoint: CheckpointLike | None = None) -> bool:
    """
    Report the metrics of one step, from a trainable or from a program that a trial's command runs.

    See `RunningTrial.report`; the result is True.

    Raises:
        UsageError: No trial runs in this process, and no trial's command started the process.
    """
    if _current is None and (command := _connection_of_command()) is not None:
        command.report(metrics, checkpoint)
        return True
    if _current is None:
        raise UsageError(
            "studydb.report() was called outside a trial. Let a worker run the function, "
            "or use study.ask() to run trials in your own program."
        )
    return _current.report(metrics, checkpoint=checkpoint)
