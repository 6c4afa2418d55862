"""The work of a child process: receive a job, run it, send how it ended."""

import atexit
import faulthandler
import io
import os
import random
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs
from numpy import random as numpy_random

from studydb.artifacts import fetch_parameter
from studydb.artifacts.checkpoint_files import Restored, fetch
from studydb.child.channel import Channel
from studydb.child.job import Job, TrainableImport, read_job
from studydb.child.messages import Began, End, Ended, write
from studydb.child.running_trial import RunningTrial, current
from studydb.domain.errors import (
    CheckpointError,
    LeaseLost,
    TrainableError,
    TrialStopped,
    UsageError,
)
from studydb.domain.failures import failure_of
from studydb.domain.records import Failure, TrainableKind
from studydb.processes import SIGNAL_SPREAD_S, STOP_SIGNALS
from studydb.trainables import (
    CommandFailed,
    GivenBack,
    ProcessLost,
    StoredParameter,
    call,
    ignores_config,
    load,
)

PROGRAM = "studydb worker"
"""The only item of `sys.argv` in a trial: argparse finds no arguments, and shows this name."""

_USAGE = 2
"""The exit code of argparse for wrong or missing arguments."""


def main(channel: Channel) -> None:
    """Run the attempt that comes over the channel, then end this process."""
    prepare_streams()
    end_with(serve, channel)


def end_with(serve: Callable[[Channel], int], channel: Channel) -> None:
    """Call `serve`, then exit with the status that it returns."""
    status = 1
    try:
        status = serve(channel)
        atexit._run_exitfuncs()  # noqa: SLF001  the exit functions of the user's libraries
    except BaseException:  # noqa: BLE001  no code of the fork server may run after this
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def serve(channel: Channel, function: Callable[..., Any] | None = None) -> int:
    """Run the attempt that comes over the channel; see `run`. Returns the exit status."""
    with suppress(EOFError, OSError):
        frame = channel.receive()
        assert frame is not None
        ended = run(read_job(frame), channel, function)
        if ended.failure is not None:
            sys.stderr.write(ended.failure.traceback)
        flush_streams()
        channel.send(write(ended))
        return 1 if ended.end is End.FAILED else 0
    return 1


def run(job: Job, channel: Channel, function: Callable[..., Any] | None = None) -> Ended:
    """
    Run one attempt, and return how it ended, with the error if the user's code raised one.

    Args:
        function: The trainable, if this process was forked from a template; None to import it.
    """
    try:
        if function is None:
            prepare(job.to_import)
        trial = _begin(job, channel, _restored(job))
    except CheckpointError as cause:
        return Ended(End.UNRESTORABLE, failure_of(cause))
    except (OSError, TrainableError, UsageError) as cause:
        return Ended(End.UNPREPARED, failure_of(cause))
    try:
        if function is None:
            with current(trial):
                function = import_trainable(job.to_import)
    except BaseException as cause:  # noqa: BLE001  the user's module may raise anything
        return Ended(End.UNPREPARED, failure_of(cause))
    try:
        _make_directory(job, trial)
    except OSError as cause:
        return Ended(End.UNPREPARED, failure_of(cause))
    # Without a seed, all children, as copies of one process, would get the same random numbers.
    _seed(job.seed)
    with suppress(OSError):  # the next report notices that the worker is gone
        channel.send(write(Began(time.monotonic())))
    try:
        with current(trial):
            trial.finish(call(function, trial.given_config, trial))
        ended = Ended(trial.raised_for or End.COMPLETED)
    except ProcessLost:  # the worker sees this process die in the same way
        flush_streams()
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    except GivenBack as error:
        ended = Ended(End.GIVEN_BACK, Failure("GivenBack", str(error), ""), later=error.later)
    except BaseException as error:  # noqa: BLE001  sys.exit() is a failure of the trial, too
        ended = _ended_by(error, trial)
    unread = bool(job.config) and not trial.config_was_read and ignores_config(function)
    return structs.replace(ended, config_unread=unread)


def prepare(to_import: TrainableImport) -> None:
    """
    Set working directory, arguments and random generators for the import of the trainable.

    The seed is the study's UUID, so that an import gets the same random numbers in each process.

    Raises:
        TrainableError: The worker's working directory cannot be entered.
    """
    workdir = to_import.workdirs[0]
    try:
        os.chdir(workdir)
    except OSError as cause:
        raise TrainableError(
            f"The working directory {workdir} cannot be entered: {cause.strerror}. "
            "Start the worker with --workdir naming one that exists here."
        ) from cause
    sys.argv = [PROGRAM]
    _seed(zlib.crc32(to_import.study_uuid.encode()))


def import_trainable(to_import: TrainableImport) -> Callable[..., Any]:
    """Import the trainable's function (call `prepare` before); the import may raise anything."""

    def fetch(parameter: StoredParameter) -> bytes:
        if parameter.data is not None:
            return parameter.data  # it is part of the signed trainable
        return fetch_parameter(to_import.stores, parameter.url, digest=parameter.digest)

    return load(to_import.trainable, to_import.workdirs, fetch=fetch, own_only=not to_import.signed)


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy_random.seed(seed % 2**32)  # noqa: NPY002  the generator that users' libraries share


def _restored(job: Job) -> Restored | None:
    if job.restore is None:
        return None
    store_url = job.restore.store or job.store
    return fetch(store_url, job.restore, target=Path(job.scratch) / "checkpoint")


def _begin(job: Job, channel: Channel, checkpoint: Restored | None) -> RunningTrial:
    trial = RunningTrial(job, channel, checkpoint)

    signalled_s: list[float] = []

    def preempt(number: int, _frame: object) -> None:
        signalled_s.append(time.monotonic())
        if signalled_s[-1] - signalled_s[0] > SIGNAL_SPREAD_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        trial.preempt()

    def disown() -> None:
        channel.close()
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        signal.signal(number, preempt)
    # If a forked process kept the socket open, the worker would not see this process end.
    os.register_at_fork(after_in_child=disown)
    return trial


def _make_directory(job: Job, trial: RunningTrial) -> None:
    """Make the trial's directory for a command; enter it if the user's code is to run there."""
    if job.to_import.trainable.kind == TrainableKind.COMMAND or job.runs_in_directory:
        directory = trial.directory
        if job.runs_in_directory:
            os.chdir(directory)


def _ended_by(error: BaseException, trial: RunningTrial) -> Ended:
    if trial.raised_for is not None:
        quiet = isinstance(error, TrialStopped | LeaseLost)
        return Ended(trial.raised_for, None if quiet else failure_of(error))
    if isinstance(error, CommandFailed):  # studydb's own traceback would not help
        failure = failure_of(error.__cause__ or error)
        return Ended(End.FAILED, Failure(failure.type, failure.message, error.tail))
    failure = failure_of(error)
    if isinstance(error, SystemExit):
        message = (
            f"The trainable called sys.exit({error.code!r}). Return from it, or raise an error."
        )
        if error.code == _USAGE:
            message += " If it parses sys.argv: a trial gets no arguments there; use its config."
        failure = Failure(failure.type, message, failure.traceback)
    elif isinstance(error, TrialStopped):
        message = "The trainable raised TrialStopped, but nothing had stopped it. Return instead."
        failure = Failure(failure.type, message, failure.traceback)
    return Ended(End.FAILED, failure)


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the user's code may have replaced the streams
            stream.flush()


def prepare_streams() -> None:
    """
    Replace stdout and stderr by line-buffered streams, and print the stack at a crash.

    The inherited streams are not kept, because they cache properties of the fork server's streams.
    """
    # typeshed declares `__stdout__` and `__stderr__` final
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]
    faulthandler.enable()


def _stream(descriptor: int) -> "io.TextIOWrapper[io.BufferedWriter]":
    binary = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(binary), errors="backslashreplace", line_buffering=True
    )
