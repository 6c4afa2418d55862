"""One attempt: its child process, the reports of that process, and how the attempt ends."""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import assert_never

from studydb.artifacts import INLINE, Stores
from studydb.artifacts.checkpoint_records import Restore, Upload
from studydb.child.channel import Channel, Frame, FrameError
from studydb.child.job import Job
from studydb.child.messages import (
    Answered,
    Began,
    End,
    Ended,
    FlushAsked,
    FromSupervisor,
    LostNotice,
    PreemptNotice,
    Reported,
    StopNotice,
    UploadAsked,
    read_from_child,
    write,
)
from studydb.domain.attempt_process import AttemptProcess, Start
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.errors import (
    CheckpointError,
    InvalidReport,
    LeaseLost,
    NotAllowed,
    StorageTransient,
    StudydbError,
    TrainableError,
    Untrusted,
)
from studydb.domain.failures import Failure, failure_of
from studydb.domain.life.decisions import Action
from studydb.domain.life.ending import DIED, GIVEN_BACK, TRY_LATER
from studydb.domain.life.states import Reason
from studydb.domain.metrics import DONE, STEP, Result, read_report
from studydb.domain.scheduling import last_step
from studydb.domain.trainable import TrainableKind
from studydb.lease.held import HeldAttempt
from studydb.processes import SIGNAL_SPREAD_S, STOP_SIGNALS
from studydb.temporary import TemporaryDirectory
from studydb.trainables import provenance
from studydb.worker.attempt_output import AttemptOutput
from studydb.worker.attempt_progress import Notice, Outcome, Progress
from studydb.worker.children import ChildProcess
from studydb.worker.equipment import Equipment
from studydb.worker.holdings import NOTHING_HELD, Holdings
from studydb.worker.host import START_PAUSES_S, host_error, oom_kills
from studydb.worker.slot_processes import SlotProcesses
from studydb.worker.templates import Started, Template

TICK_S = 0.25
LEAST_GRACE_S = 2.0
OUTAGE_PAUSE_S = 2.0
"""The time between background flushes in an outage; in a stopping worker it is `grace_s`."""


class _NotBegun(Exception):
    """The attempt has no job, because this worker cannot run the study's trainable."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Attempt:
    """
    Runs a claimed trial until the attempt ends.

    Args:
        holdings: The trial's devices and memory limit; the caller releases them at the end.

    Attributes:
        process: Facts about the child process for the attempt's row; None until a child has run.
        last_value: The last reported value of the study's metric; None before the first report.
    """

    def __init__(
        self,
        equipment: Equipment,
        held: HeldAttempt,
        processes: SlotProcesses,
        holdings: Holdings = NOTHING_HELD,
    ) -> None:
        self._equipment, self._held, self._processes = equipment, held, processes
        self._holdings = holdings
        self._progress = Progress()
        self._stores = Stores(INLINE)
        self._to_import = holdings.show(equipment.code.known)
        self._checkpoint = held.claim.checkpoint
        self._restored: tuple[Checkpoint, Restore] | None = None
        self._is_read = False
        self._claimed_s = time.monotonic()
        self._fresh = False
        self._is_restart = False
        self._template: Template | None = None
        self.process: AttemptProcess | None = None
        self.last_value: float | None = None
        self._start: Start | None = None
        self._start_s: float | None = None
        self._provenance: dict[str, str] | None = None
        self._upload: Upload | None = None

    def run(self) -> Outcome:
        """
        Run the trial until the attempt ends.

        If a child did not run the trial (see `_must_start_again`), another child is started. A
        checkpoint that a child cannot restore is marked as corrupt, and the next child starts from
        an older checkpoint, or from the beginning if there is none.

        Raises:
            LeaseLost: The attempt no longer holds the trial; the child has ended.
            StorageTransient: The database did not answer in time.
        """
        while True:
            try:
                outcome = self._run_child()
            except _NotBegun as cause:
                outcome = cause.outcome
            self._is_restart = True
            if outcome.restart:
                continue
            if not outcome.unrestorable or self._restored is None:
                return outcome
            why = outcome.failure.message if outcome.failure else ""
            self._checkpoint = self._equipment.checkpoints.mark_corrupt(
                self._held, self._restored[0], why=why
            )

    def delete_upload(self) -> None:
        """
        If the lease is lost, delete the bytes of an unfinished upload; the child must have ended.

        Another worker may have deleted the upload's row before these bytes were written. In this
        case, no other process deletes the bytes.
        """
        if self._held.is_lost and self._upload is not None:
            checkpoints = self._equipment.checkpoints
            checkpoints.delete_upload(self._held, self._upload, self._stores)

    def _run_child(self) -> Outcome:
        directory = self._equipment.log_dir(self._held.lease)
        self._progress = Progress(oom_kills=oom_kills())
        with ExitStack() as stack:
            try:
                started, output = self._start_child_with_retries(directory, stack)
            except FrameError as error:
                return Outcome(Reason.FAILED, failure_of(error))
            except OSError as error:
                return self._give_up(host_error("start the process of a trial", error))
            child, self._start, self._start_s = started.child, started.start, None
            self._holdings.give_to(child)
            self._provenance = provenance(self._to_import.trainable, self._to_import.workdirs)
            self._template = started.template
            try:
                self._serve(child)
                if self._must_start_again(started):
                    return Outcome(Reason.LOST, restart=True)
                return self._outcome(child)
            finally:
                self._release(started, output)
                self._record_process(output, directory)
                self._equipment.templates.close_retired()

    def _start_child_with_retries(
        self, directory: Path, stack: ExitStack
    ) -> tuple[Started, AttemptOutput]:
        make_job = cache(self._make_job)
        for pause_s in START_PAUSES_S:
            with suppress(OSError):
                return self._start_child(make_job, directory, stack)
            if self._equipment.interruption.wait(pause_s):
                break
        return self._start_child(make_job, directory, stack)

    def _start_child(
        self, make_job: Callable[[], Job], directory: Path, stack: ExitStack
    ) -> tuple[Started, AttemptOutput]:
        with ExitStack() as opened:
            scratch = opened.enter_context(TemporaryDirectory())
            output = self._equipment.pump.open(directory, append=self._is_restart)
            try:
                started = self._processes.spawn(
                    self._to_import,
                    lambda: make_job().with_scratch(scratch),
                    output,
                    fresh=self._fresh,
                    descriptors=self._holdings.grant.descriptors,
                )
            except BaseException:
                output.finish()
                raise
            output.release()
            stack.push(opened.pop_all())
            return started, output

    def _give_up(self, why: StudydbError) -> Outcome:
        """Stop the worker and release the trial: another worker may be able to run it."""
        self._equipment.interruption.give_up(str(why))
        return Outcome(Reason.PREEMPTED, failure_of(why))

    def _stop_claiming(self, why: str, failure: Failure | None) -> Outcome:
        """Release the trial and claim no more; trials in the worker's other slots run on."""
        if self._equipment.interruption.may_claim:
            say = self._equipment.options.say
            say("no more trials are claimed; the worker ends when its running trials have ended")
        self._equipment.interruption.stop_claiming(why)
        return Outcome(Reason.PREEMPTED, failure)

    def _make_job(self) -> Job:
        """
        Read the code and find the checkpoint; return the job without its scratch directory.

        Raises:
            _NotBegun: This worker cannot run the study's trainable.
            LeaseLost: The attempt no longer holds the trial.
            StorageTransient: The database did not answer in time.
        """
        if not self._is_read:
            self._read_code()
        usable = self._equipment.checkpoints.newest(self._held, self._checkpoint, self._stores)
        self._restored = usable
        restore = usable[1] if usable else None
        self._held.begin_after(restore.step if restore else 0)
        claim, study = self._held.claim, self._equipment.study
        job = Job(
            to_import=self._to_import,
            trial_uuid=claim.uuid,
            number=claim.lease.number,
            attempt=claim.lease.attempt,
            config=claim.config,
            seed=claim.seed,
            objective=study.objective,
            scratch="",
            store=self._stores.current,
            name=claim.name,
            tags=claim.tags,
            directory=str(self._equipment.trial_directory(claim.lease)),
            runs_in_directory=self._equipment.options.runs_in_directory,
            study_name=study.name,
            grace_s=self._equipment.options.grace_s,
            rules=tuple(rule.to_json() for rule in study.rules),
            restore=restore,
            time_total_s=claim.time_total_s,
            next_decision_step=self._held.next_decision_step,
            last_step=last_step(study.scheduler),
            may_keep=self._equipment.options.warm_starts and self._holdings.may_be_kept,
            cache_bytes=self._equipment.options.cache_bytes,
        )
        return self._holdings.limit(job)

    def _read_code(self) -> None:
        """Read what the attempt runs and where its checkpoints are; or raise _NotBegun."""
        try:
            to_import, self._stores = self._equipment.code.read()
        except (NotAllowed, TrainableError, Untrusted) as error:
            raise _NotBegun(self._stop_claiming(str(error), failure_of(error))) from error
        self._to_import, self._is_read = self._holdings.show(to_import), True

    def _must_start_again(self, started: Started) -> bool:
        """Return whether the child did not run the trial, so that another child must run it."""
        if started.is_reused:
            return self._declined_reuse()
        if self._must_start_fresh(started):
            self._fresh = True
            return True
        return False

    def _declined_reuse(self) -> bool:
        """Return whether a reused process declined the trial, or ended before the trial began."""
        progress = self._progress
        if self._held.is_lost or progress.deadline_s is not None or progress.refused is not None:
            return False
        if progress.ended is not None:
            return progress.ended.end is End.NOT_REUSED
        return self._start_s is None and not progress.began

    def _must_start_fresh(self, started: Started) -> bool:
        """
        Give up warm starts if a signal killed the child and the child's template is not proven.

        Stop signals do not count. If the child has begun (see `Progress.began`) or sent its
        `Ended`, the template is recorded as proven.

        Returns:
            Whether the attempt must be started again, fresh.
        """
        progress, child = self._progress, started.child
        if started.template is None or progress.notice is not None or self._held.is_lost:
            return False
        if progress.began or progress.ended is not None:
            started.template.is_proven = True
            return False
        exit_ = child.wait(self._equipment.options.grace_s)
        if exit_ is None or exit_.signal is None or exit_.signal in STOP_SIGNALS:
            return False
        return self._equipment.templates.give_up(
            started, f"the first process that was forked after its import {exit_}"
        )

    def _serve(self, child: ChildProcess) -> None:
        while True:
            self._tick(child)
            deadline_s = self._progress.deadline_s
            if deadline_s is not None and time.monotonic() > deadline_s:
                return
            if self._held.buffer.is_full:  # the child waits in `report`
                time.sleep(TICK_S)
                continue
            # Check the exit before the channel: a child that has ended may have left messages.
            has_ended = child.exit is not None
            try:
                frame = _receive(child.channel)
                if frame is None:
                    if has_ended:
                        return
                    continue
                message = read_from_child(frame)
                if isinstance(message, Ended):
                    self._progress.check_end(message.end, self._to_import, self._start)
                    self._progress.ended = message
                    return
                self._handle(message, child.channel)
            except (FrameError, InvalidReport) as error:
                self._progress.refused = failure_of(error)
                return
            except EOFError:
                return

    def _tick(self, child: ChildProcess) -> None:
        progress, held = self._progress, self._held
        if held.buffer.is_overdue() and not held.is_lost:
            self._flush_in_background()
        notice = self._notice()
        if notice != progress.notice:
            progress.notice = notice
            self._notify(child, notice)

    def _notice(self) -> Notice:
        held = self._held
        if held.is_lost:
            return LostNotice()
        if held.verdict is not None and held.verdict.action is not Action.PAUSE:
            return StopNotice(held.verdict)
        if self._equipment.interruption.is_stopping:
            return PreemptNotice()
        return StopNotice(held.verdict) if held.verdict is not None else None

    def _notify(self, child: ChildProcess, notice: Notice) -> None:
        self._progress.judged = self._progress.judged or notice is not None
        verdict = notice.verdict if isinstance(notice, StopNotice) else None
        if notice is None or (verdict is not None and verdict.action is Action.PAUSE):
            self._progress.deadline_s = None  # a pause waits for the next report, however late
        elif verdict is not None and verdict.at_once:
            self._progress.deadline_s = time.monotonic()
        elif self._progress.deadline_s is None:
            options, left_s = self._equipment.options, self._equipment.grace_left_s
            least_s = min(options.grace_s, LEAST_GRACE_S)  # time for the child to read the notice
            self._progress.deadline_s = time.monotonic() + max(left_s, least_s)
        self._send(child.channel, notice or StopNotice(None))
        if isinstance(notice, PreemptNotice):
            child.terminate()  # for code that handles SIGTERM itself, and for a slow import

    def _flush_in_background(self) -> None:
        progress, began_s = self._progress, time.monotonic()
        if began_s < progress.next_flush_s:
            return
        try:
            self._held.flush(patience_s=0.0, batches=1)
            progress.away_since_s = None
            self._equipment.notices.answered()
            if self._held.buffer.needs_flushes:  # serve the child as long as this flush took
                progress.next_flush_s = 2 * time.monotonic() - began_s
        except StorageTransient as error:
            self._note_outage(error, began_s)
        except LeaseLost:
            pass  # the next tick tells the child that the lease is lost

    def _note_outage(self, error: StorageTransient, began_s: float) -> None:
        progress, equipment, now_s = self._progress, self._equipment, time.monotonic()
        equipment.notices.outage(error)
        progress.away_since_s = progress.away_since_s or began_s
        if now_s - progress.away_since_s > equipment.options.patience_s:
            raise error
        # A worker that is stopping tries less often: failing flushes would use up the grace.
        is_stopping = equipment.interruption.is_stopping
        pause_s = equipment.options.grace_s if is_stopping else OUTAGE_PAUSE_S
        progress.next_flush_s = now_s + pause_s

    def _handle(
        self, message: Reported | FlushAsked | UploadAsked | Began, channel: Channel
    ) -> None:
        if isinstance(message, Began):
            waited_s = time.monotonic() - self._claimed_s
            self._start_s = min(max(0.0, message.at_s - self._claimed_s), waited_s)
            if message.warm_with_devices:
                self._equipment.templates.allow_devices(self._to_import.trainable)
            return
        self._progress.began = True
        if self._template is not None:
            self._template.is_proven = True
        store = None
        match message:
            case Reported():
                self._store(message)
            case FlushAsked():
                self._safely(self._held.flush)
            case UploadAsked(upload=upload):
                store = self._begin_upload(upload)
            case _:
                assert_never(message)
        if message.id is not None:
            held = self._held
            self._progress.judged = self._progress.judged or held.verdict is not None
            self._send(
                channel,
                Answered(
                    message.id,
                    held.verdict,
                    held.next_decision_step,
                    lost=held.is_lost,
                    store=store,
                ),
            )

    def _store(self, message: Reported) -> None:
        held, saved = self._held, message.saved
        if message.result is not None and not held.refuses_results:
            result = self._checked(message.result)
            due = held.add(result)
            self.last_value = result.value
            self._safely(lambda: self._equipment.warn_of_rules(held, result))
            if message.id is not None:  # the child waits for the answer
                self._safely(held.flush)
            elif due:
                self._flush_in_background()
        if saved is not None:
            # `record_checkpoint` deletes the bytes if it is certain that no row names them.
            self._upload = None
            self._safely(lambda: self._equipment.record_checkpoint(held, saved, self._stores))
        if (error := message.artifact_error) is not None:
            self._safely(lambda: self._equipment.record_checkpoint_error(held, error))

    def _begin_upload(self, upload: Upload) -> str | None:
        """Record that an upload begins, or return the store in which the child saves instead."""
        former = self._stores.current
        self._stores = self._equipment.checkpoints.stores_for_save(self._stores)
        if self._stores.current != former:
            return self._stores.current
        self._upload = upload
        self._safely(lambda: self._record_upload(upload))
        return None

    def _record_upload(self, upload: Upload) -> None:
        try:
            self._held.begin_upload(upload.uuid, upload.url)
        except CheckpointError as error:  # the child's save fails, too
            self._equipment.record_checkpoint_error(self._held, str(error))

    def _checked(self, result: Result) -> Result:
        metric, buffer = self._equipment.study.objective.metric, self._held.buffer
        return read_report(  # checked again, because the child is not trusted
            {
                **result.metrics,
                metric: result.value,
                STEP: result.step,
                DONE: result.is_last,
            },
            metric=metric,
            last_step=buffer.last_step,
            rises_from=buffer.rises_from,
            time_total_s=result.time_total_s,
        )

    def _safely(self, call: Callable[[], object]) -> None:
        with suppress(LeaseLost):  # a notice or answer tells the child that the lease is lost
            call()

    def _send(self, channel: Channel, message: FromSupervisor) -> None:
        with suppress(OSError, FrameError):  # `_serve` notices a child that has died
            channel.send(write(message))

    def _outcome(self, child: ChildProcess) -> Outcome:
        progress, held = self._progress, self._held
        if held.is_lost:
            raise LeaseLost(number=held.lease.number, attempt=held.lease.attempt)
        if progress.ended is not None:
            if progress.ended.config_unread:
                name = self._to_import.trainable.name
                self._safely(lambda: self._equipment.record_config_unread(held, name))
            return self._of_end(progress.ended)
        if progress.refused is not None:
            return Outcome(Reason.FAILED, progress.refused)
        if progress.deadline_s is not None:
            return Outcome(Reason.PREEMPTED)  # the child was told to end, and died or is too slow
        exit_ = child.wait(self._equipment.options.grace_s)
        if exit_ is not None and exit_.signal in STOP_SIGNALS and self._was_asked_to_stop():
            # The child had not yet set its signal handlers, or the user's code has replaced them.
            return Outcome(Reason.PREEMPTED)
        how = f"The process of the trial {exit_ or 'closed its channel and hung'}."
        was_killed = exit_ is not None and exit_.signal == signal.SIGKILL
        if out_of_memory := self._holdings.why_killed():
            how = f"{out_of_memory} {how}"
        elif was_killed and oom_kills() > progress.oom_kills:
            how += (
                " The kernel ran out of memory and killed a process of this host, perhaps this one."
            )
        return Outcome(Reason.LOST, Failure(DIED, how))

    def _of_end(self, ended: Ended) -> Outcome:  # noqa: PLR0911  one line per end
        is_stopping = self._equipment.interruption.is_stopping
        match ended.end:
            case End.COMPLETED if ended.handles_sigterm and is_stopping:
                return Outcome(Reason.PREEMPTED)  # the user's handler may have ended the training
            case End.COMPLETED:
                return Outcome(Reason.COMPLETED)
            case End.FAILED if is_stopping:
                # The user's handler may have raised, or the stop signal may have killed a process
                # that the trial needs.
                return Outcome(Reason.PREEMPTED, ended.failure)
            case End.FAILED:
                return Outcome(Reason.FAILED, self._holdings.explain(ended.failure))
            case End.PREEMPTED if not self._was_asked_to_stop():
                how = "The trial received a stop signal that its worker had not sent."
                return Outcome(Reason.LOST, ended.failure or Failure("Terminated", how))
            case End.GIVEN_BACK:
                kind, failure = TRY_LATER if ended.later else GIVEN_BACK, ended.failure
                return Outcome(Reason.PREEMPTED, Failure(kind, failure.message if failure else ""))
            case End.STOPPED | End.PREEMPTED | End.LOST | End.NOT_REUSED:
                return Outcome(Reason.PREEMPTED, ended.failure)
            case End.UNPREPARED:
                why = ended.failure.message if ended.failure else "it did not begin"
                return self._stop_claiming(f"This host cannot run the trial: {why}", ended.failure)
            case End.UNRESTORABLE:
                return Outcome(Reason.LOST, ended.failure, unrestorable=True)
            case _:
                assert_never(ended.end)

    def _release(self, started: Started, output: AttemptOutput) -> None:
        """Keep the child for the next trial, or kill it; after `Ended`, first wait for its exit."""
        child, ended = started.child, self._progress.ended
        if ended is not None and self._may_keep(ended):
            output.settle()
            self._processes.keep(started, self._to_import, output)
            return
        if ended is not None:
            if ended.kept:
                child.channel.close()  # the child reads the end of the stream, cleans up and exits
            child.wait(self._equipment.grace_left_s)
            if ended.not_kept is not None:
                self._equipment.say_not_reused(ended.not_kept)
        child.kill()
        child.wait()
        child.channel.close()
        output.finish()

    def _may_keep(self, ended: Ended) -> bool:
        is_orderly = ended.end in (End.COMPLETED, End.STOPPED) and ended.failure is None
        is_command = self._to_import.trainable.kind == TrainableKind.COMMAND
        is_reusable = not is_command and self._holdings.may_be_kept
        is_allowed = self._equipment.options.warm_starts and is_reusable
        # A stopping worker keeps the process, too; the slot ends it after storing the trial's end.
        return ended.kept and is_orderly and is_allowed and not self._held.is_lost

    def _was_asked_to_stop(self) -> bool:
        """
        Return whether the child was told to stop or pause, or the worker begins to stop within 1 s.

        A service manager signals all processes; the child may get the signal before the worker.
        """
        return self._progress.notice is not None or self._equipment.interruption.wait(
            SIGNAL_SPREAD_S
        )

    def _record_process(self, output: AttemptOutput, directory: Path) -> None:
        tail = output.tail().decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        self.process = AttemptProcess(
            str(directory), tail, self._start, self._start_s, self._provenance
        )


def _receive(channel: Channel) -> Frame | None:
    try:
        return channel.receive(timeout_s=TICK_S)
    except OSError as cause:
        raise EOFError from cause
