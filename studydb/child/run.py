"""The work of a trial's process: receive a job, run it, send how it ended."""

import atexit
import errno
import os
import signal
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from studydb.artifacts import fetch_parameter
from studydb.artifacts.checkpoint_files import Restored, fetch
from studydb.artifacts.restore_cache import open_cache
from studydb.child.channel import Channel
from studydb.child.job import Job, TrainableImport, read_job
from studydb.child.messages import Began, End, Ended, NextAttempt, read_from_supervisor, write
from studydb.child.process_state import ProcessState, stop_timers
from studydb.child.running_trial import RunningTrial, current
from studydb.child.seeding import seed
from studydb.child.staleness import Staleness
from studydb.child.stop_signals import ProcessStopped, StopSignals
from studydb.child.streams import (
    flush_streams,
    prepare_streams,
    redirect_streams,
    settle_streams,
)
from studydb.domain.attempt_process import Start
from studydb.domain.errors import (
    CheckpointError,
    LeaseLost,
    TrainableError,
    TrialStopped,
    UsageError,
)
from studydb.domain.failures import Failure, failure_of
from studydb.domain.trainable import TrainableKind
from studydb.processes import STOP_SIGNALS, limit_memory
from studydb.trainables import (
    ClassRun,
    CommandFailed,
    GivenBack,
    NotReset,
    ProcessLost,
    StoredParameter,
    call,
    can_reset,
    ignores_config,
    load,
)

PROGRAM = "studydb worker"
"""
The only item of `sys.argv` in a trial. If the user's code parses `sys.argv` with argparse, argparse
finds no arguments and shows this text as the program's name.
"""

START_ATTRIBUTE = "studydb_start"
"""
The name of an attribute of the trainable. If its value is "fresh", each attempt imports the
trainable. If it is "warm", attempts that hold devices, too, may be forked from a process that has
imported the trainable.
"""

_DESCRIPTORS = 3
"""How many descriptors come with the next attempt: its channel, stdout and stderr."""

_HOST_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
"""
If a trial's directory cannot be used because of one of these errors, another host may succeed, so
the trial does not fail.
"""

_MOST_CAUSES = 100
"""How many causes of an error are looked at; an error may be its own cause."""

_USAGE = 2
"""The exit code of argparse for wrong or missing arguments."""


class Imported(NamedTuple):
    """The trainable that a template has imported, and the check whether the import is outdated."""

    function: Callable[..., Any]
    staleness: Staleness


def main(channel: Channel) -> None:
    """Run the attempt that comes over the channel, and any that follow; then end the process."""
    prepare_streams()
    end_with(serve, channel)


def end_with(serve: Callable[[Channel], int], channel: Channel) -> None:
    """Call `serve`, then the exit functions; exit with the status of `serve`, or 1 if it raises."""
    status = 1
    try:
        status = serve(channel)
        atexit._run_exitfuncs()  # noqa: SLF001  the exit functions of the user's libraries
    except BaseException:  # noqa: BLE001  no code of the fork server may run after this
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def serve(channel: Channel, imported: Imported | None = None) -> int:
    """
    Run the attempt that comes over the channel, and the attempts that follow it in this process.

    Args:
        imported: The trainable, if this process was forked from a template; None to import it.

    Returns:
        The exit status.
    """
    try:
        return _TrialProcess(channel, imported).serve()
    except ProcessStopped:
        return 0
    except (EOFError, OSError):
        return 1


class _TrialProcess:
    """The process of one attempt, or of several if the trainable overrides `reset_config`."""

    def __init__(self, channel: Channel, imported: Imported | None) -> None:
        self._channel = channel
        self._function = imported and imported.function
        self._staleness = imported and imported.staleness
        self._began_ns = time.time_ns()
        self._signals = StopSignals()
        self._trial: RunningTrial | None = None
        self._run: ClassRun | None = None
        self._state: ProcessState | None = None
        self._is_measured = False
        self._not_kept: str | None = None
        self._lift_memory_limit: Callable[[], None] | None = None
        # If a forked process kept the socket open, the worker would not see this process end.
        os.register_at_fork(after_in_child=self._disown)

    def _disown(self) -> None:
        self._channel.close()
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def serve(self) -> int:
        """Run attempts until the process must end; return its exit status."""
        try:
            ended = self._serve_one()
            while ended.kept and self._take_next():
                ended = self._serve_one()
        finally:
            self._clean_up()
        return 1 if ended.end is End.FAILED else 0

    def _clean_up(self) -> None:
        self._channel.close()  # from now on, the worker cannot give this process another trial
        if self._has_object and self._run is not None:
            self._signals.ignore()
            try:
                self._run.close()
            except BaseException:  # noqa: BLE001  all trials have ended, so none fails
                traceback.print_exc()

    def _serve_one(self) -> Ended:
        frame = self._channel.receive()
        assert frame is not None
        job = read_job(frame)
        ended = self._attempt(job)
        # The failure of a command holds the last lines of the output, which the log has already.
        is_command = job.to_import.trainable.kind == TrainableKind.COMMAND
        if ended.failure is not None and not (is_command and ended.end is End.FAILED):
            with suppress(Exception):  # the user's code may have replaced or closed the stream
                sys.stderr.write(ended.failure.traceback)
        (settle_streams if ended.kept else flush_streams)()
        self._channel.send(write(ended))
        if ended.kept:
            self._signals.end()
        return ended

    def _take_next(self) -> bool:
        """
        Wait for the next attempt, and take over its channel and output.

        Returns:
            False if no attempt comes, or its descriptors are lost.
        """
        descriptors: list[int] = []
        try:
            while True:
                with self._signals.deferred():  # an interruption could lose descriptors
                    frame = self._channel.receive(0, descriptors=descriptors)
                    # Messages before NextAttempt were for the earlier attempt.
                    if frame is not None and isinstance(read_from_supervisor(frame), NextAttempt):
                        return self._take_over(descriptors)
                if frame is None:
                    self._channel.wait()
        except EOFError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _take_over(self, descriptors: list[int]) -> bool:
        if len(descriptors) < _DESCRIPTORS:  # the limit of open files is reached
            return False
        job, stdout, stderr = descriptors
        descriptors.clear()
        self._channel.close()
        os.set_inheritable(job, False)
        self._channel = Channel(socket.socket(fileno=job))
        redirect_streams(stdout, stderr)
        return True

    @property
    def _has_object(self) -> bool:
        return self._run is not None and self._run.is_kept

    def _attempt(self, job: Job) -> Ended:
        """Run one attempt; return how it ended, with the failure if there is one."""
        staleness = self._staleness if self._has_object else None
        if staleness is not None and staleness.reason_after_trial():
            return Ended(End.NOT_REUSED)
        try:
            if job.memory_bytes is not None:
                self._lift_memory_limit = limit_memory(job.memory_bytes, job.cgroup)
            if self._function is None or self._has_object:
                prepare(job.to_import)
            trial = RunningTrial(job, self._channel, _restored(job))
        except CheckpointError as cause:
            return Ended(End.UNRESTORABLE, failure_of(cause))
        except (OSError, TrainableError, UsageError) as cause:
            return Ended(End.UNPREPARED, failure_of(cause))
        self._trial, self._not_kept = trial, None
        self._signals.begin(trial)
        try:
            function = self._import(job, trial)
        except BaseException as cause:  # noqa: BLE001  the user's module may raise anything
            return Ended(End.UNPREPARED, failure_of(cause))
        try:
            _make_directory(job, trial)
        except OSError as cause:
            is_of_host = _is_fault_of_host(cause, Path(job.directory))
            return Ended(End.UNPREPARED if is_of_host else End.FAILED, failure_of(cause))
        # Without a seed, all children, as copies of one process, would get the same random numbers.
        seed(job.seed, after_step=job.start_step)
        with suppress(OSError):  # the next report notices that the worker is gone
            self._channel.send(write(Began(time.monotonic(), starts_warm_with_devices(function))))
        ended = _call(self._run or function, trial, self._lift_memory_limit)
        stop_timers()
        handles_sigterm = trial.raised_for is None and self._signals.sigterm_is_replaced
        trial.settle()
        trial.close()
        if self._has_object and self._state is not None:
            self._state.restore()
        unread = bool(job.config) and not trial.config_was_read and ignores_config(function)
        return structs.replace(
            ended,
            config_unread=unread,
            kept=self._has_object,
            not_kept=self._not_kept,
            handles_sigterm=handles_sigterm,
        )

    def _import(self, job: Job, trial: RunningTrial) -> Callable[..., Any]:
        """Import the trainable once; prepare to keep the object of a class that can be reset."""
        if self._function is None:
            with current(trial):
                self._function = import_trainable(job.to_import)
        function = self._function
        keeps = job.may_keep and reason_for_fresh_starts(function) is None
        if self._run is None and keeps and can_reset(function):
            self._run = ClassRun(function, may_keep=self._may_keep)
            self._state = ProcessState()
        return function

    def _may_keep(self) -> bool:
        assert self._trial is not None
        assert self._state is not None
        self._trial.settle()
        if self._trial.raised_for not in (None, End.COMPLETED, End.STOPPED):
            return False
        try:
            if self._staleness is None:
                self._staleness = Staleness(self._began_ns)
            if not self._is_measured:
                self._staleness.measure()
                self._is_measured = True
            self._not_kept = self._state.reason_against() or self._staleness.reason_after_trial()
        except OSError as error:
            self._not_kept = f"what the trial has left in its process is unknown: {error}"
        return self._not_kept is None


def _call(
    function: Callable[..., Any], trial: RunningTrial, lift_memory_limit: Callable[[], None] | None
) -> Ended:
    try:
        with current(trial):
            trial.finish(call(function, trial.given_config, trial))
    except NotReset:
        if trial.has_reported:
            error = TrainableError(
                "reset_config() has reported a result and then returned False. Report in step() "
                "only, or return True."
            )
            return Ended(End.FAILED, failure_of(error))
        return Ended(End.NOT_REUSED)
    except ProcessLost:  # this process dies like the command, so the worker sees a lost attempt
        trial.settle()
        flush_streams()
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    except GivenBack as error:
        return Ended(End.GIVEN_BACK, Failure("GivenBack", str(error), ""), later=error.later)
    except BaseException as error:  # noqa: BLE001  sys.exit() is a failure of the trial, too
        if lift_memory_limit is not None and _is_out_of_memory(error):
            lift_memory_limit()  # the traceback still holds what the trial had allocated
        return _ended_by(error, trial)
    return Ended(trial.raised_for or End.COMPLETED)


def _is_out_of_memory(error: BaseException) -> bool:
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, MemoryError):
            break
        cause = cause.__cause__ or cause.__context__
    return isinstance(cause, MemoryError)


def reason_for_fresh_starts(function: Callable[..., Any]) -> str | None:
    """Return why each attempt must import this trainable, or None."""
    asks = getattr(function, START_ATTRIBUTE, None) == Start.FRESH
    return f"its {START_ATTRIBUTE} asks for fresh starts" if asks else None


def starts_warm_with_devices(function: Callable[..., Any]) -> bool:
    """Whether the author has declared that importing the trainable uses no device."""
    return bool(getattr(function, START_ATTRIBUTE, None) == Start.WARM)


def prepare(to_import: TrainableImport) -> None:
    """
    Set variables, directory, arguments and random generators for the import of the trainable.

    The seed comes from the study's UUID, so an import gets the same random numbers in each process.

    Raises:
        TrainableError: The worker's working directory cannot be entered.
    """
    os.environ.update(to_import.environment)
    workdir = to_import.workdirs[0]
    try:
        os.chdir(workdir)
    except OSError as cause:
        raise TrainableError(
            f"The working directory {workdir} cannot be entered: {cause.strerror}. "
            "Start the worker with --workdir and a directory that exists here."
        ) from cause
    sys.argv = [PROGRAM]
    seed(zlib.crc32(to_import.study_uuid.encode()))


def import_trainable(to_import: TrainableImport) -> Callable[..., Any]:
    """Import the trainable's function (call `prepare` before); the import may raise anything."""

    def fetch(parameter: StoredParameter) -> bytes:
        if parameter.data is not None:
            return parameter.data  # these bytes are part of the signed trainable
        return fetch_parameter(to_import.stores, parameter.url, digest=parameter.digest)

    return load(to_import.trainable, to_import.workdirs, fetch=fetch, own_only=not to_import.signed)


def _restored(job: Job) -> Restored | None:
    if job.restore is None:
        return None
    target = Path(job.scratch) / "checkpoint"
    return fetch(job.restore, target=target, cache=open_cache(job.cache_bytes))


def _make_directory(job: Job, trial: RunningTrial) -> None:
    """
    Make the trial's directory if the trial runs a command, or is to run in the directory.

    If the trial is to run there, enter the directory.

    Raises:
        OSError: The directory cannot be made or entered; or the trial is to run there, but cannot
            write there for a reason that lies with this host.
    """
    if job.to_import.trainable.kind == TrainableKind.COMMAND or job.runs_in_directory:
        directory = trial.directory
        if job.runs_in_directory:
            os.chdir(directory)
            _refuse_unwritable(directory)


def _refuse_unwritable(directory: Path) -> None:
    by_effective_user = os.access in os.supports_effective_ids
    if os.access(directory, os.W_OK, effective_ids=by_effective_user):
        return
    is_read_only = bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    # Else an earlier attempt has made the trial's own directory read-only. That is not refused,
    # because the trial may only read there.
    if is_read_only or _is_of_another_user(directory):
        code = errno.EROFS if is_read_only else errno.EACCES
        raise OSError(code, os.strerror(code), str(directory))


def _is_fault_of_host(cause: OSError, directory: Path) -> bool:
    """
    Whether a trial's directory cannot be used because of this host, and not because of the trial.

    An earlier attempt may have harmed the trial's own folder. All faults of the folders above count
    as faults of the host, and so does another owner of the trial's folder.
    """
    if cause.errno in _HOST_ERRORS or not _is_folder(directory.parent):
        return True
    own = directory if _is_folder(directory) else directory.parent
    return isinstance(cause, PermissionError) and _is_of_another_user(own)


def _is_of_another_user(directory: Path) -> bool:
    return directory.stat().st_uid != os.geteuid()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a folder above cannot be searched
        return False


def exit_message(error: SystemExit) -> str:
    """Say that a trial has failed because the user's code has raised SystemExit."""
    message = f"The trainable called sys.exit({error.code!r}). Return from it, or raise an error."
    if error.code == _USAGE:
        message += " If it parses sys.argv: a trial gets no arguments there; use its config."
    return message


def _ended_by(error: BaseException, trial: RunningTrial) -> Ended:
    if trial.raised_for is not None:
        quiet = isinstance(error, TrialStopped | LeaseLost)
        return Ended(trial.raised_for, None if quiet else failure_of(error))
    if trial.is_preempted:  # the stop signal may have killed a process that the trial needs
        return Ended(End.PREEMPTED, failure_of(error))
    if isinstance(error, CommandFailed):  # studydb's own traceback would not help
        failure = failure_of(error.__cause__ or error)
        return Ended(End.FAILED, structs.replace(failure, traceback=error.tail))
    failure = failure_of(error)
    if isinstance(error, SystemExit):
        failure = structs.replace(failure, message=exit_message(error))
    elif isinstance(error, TrialStopped):
        message = "The trainable raised TrialStopped, but nothing had stopped it. Return instead."
        failure = structs.replace(failure, message=message)
    return Ended(End.FAILED, failure)
