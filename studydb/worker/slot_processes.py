"""A slot's processes: each attempt gets a new one, or one that has run an earlier trial."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from studydb.child.channel import FrameError
from studydb.child.job import Job, TrainableImport, write_job
from studydb.worker.attempt_output import AttemptOutput
from studydb.worker.interruption import Interruption
from studydb.worker.templates import Started, Templates

IDLE_S = 60.0
"""A process that has waited this long for another trial is ended, to free its memory."""


class _Idle(Struct, frozen=True):
    started: Started
    code: TrainableImport
    output: AttemptOutput
    since_s: float


class SlotProcesses:
    """
    Starts the processes of one slot's attempts; one thread uses the object.

    Args:
        grace_s: How long a process that is no longer needed may take to clean up. If the worker is
            stopping, this time counts from the moment at which the worker began to stop.
    """

    def __init__(self, templates: Templates, interruption: Interruption, *, grace_s: float) -> None:
        self._templates, self._interruption, self._grace_s = templates, interruption, grace_s
        self._idle: _Idle | None = None

    def spawn(
        self,
        to_import: TrainableImport,
        make_job: Callable[[], Job],
        output: AttemptOutput,
        *,
        fresh: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Started:
        """Start an attempt in the process that waits, or in a new one from `Templates.spawn`."""
        if self._idle is not None:
            job = make_job()
            if self._idle.code != job.to_import:
                self.close()  # the study's code or stores have changed, or this trial has devices
            idle, self._idle = self._idle, None
            if idle is not None and self._take(idle, job, output):
                return structs.replace(idle.started, is_reused=True)
        return self._templates.spawn(
            to_import,
            make_job,
            stdout=output.stdout,
            stderr=output.stderr,
            fresh=fresh,
            descriptors=descriptors,
        )

    def keep(self, started: Started, code: TrainableImport, output: AttemptOutput) -> None:
        """
        Keep a process that has imported `code`, for the next trial.

        Until the next trial starts, the process's output goes to the log of the last trial.
        """
        self._idle = _Idle(started, code, output, time.monotonic())

    def drop_idle(self) -> None:
        """End a process that has waited for `IDLE_S`."""
        if self._idle is not None and time.monotonic() - self._idle.since_s >= IDLE_S:
            self.close()

    def close(self) -> None:
        """End the process that waits; kill it if its cleanup takes longer than the grace."""
        idle, self._idle = self._idle, None
        if idle is not None:
            self._end(idle)

    def _take(self, idle: _Idle, job: Job, output: AttemptOutput) -> bool:
        with suppress(OSError, FrameError):
            child = idle.started.child
            child.take(write_job(job), stdout=output.stdout, stderr=output.stderr)
            idle.output.finish(timeout_s=0.0)
            return True
        self._end(idle)
        return False

    def _end(self, idle: _Idle) -> None:
        child = idle.started.child
        child.channel.close()  # the process then cleans up
        child.wait(self._interruption.left_s(self._grace_s))
        child.kill()
        child.wait()
        idle.output.finish()
